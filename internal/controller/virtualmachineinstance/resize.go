// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// resizing is what is reported about a change of the guest's CPUs or memory.
type resizing struct {
	// cpus and memory report which of them have not changed yet.
	cpus, memory bool
	// taking reports whether the guest is to take or return memory, and has not done so yet.
	taking  bool
	verdict resize.Verdict
}

// guestTakes is the message of the condition HotMemoryChange while only the guest has to act.
const guestTakes = "The guest has yet to take or return memory, for which it needs the driver virtio_mem"

// resizePod changes the resources of the guest's Pod: before the guest grows, and after it has shrunk. The guest itself
// is changed by the agent, which reads the annotations of the Pod. docs/adr/0089
func (s *scope) resizePod(ctx context.Context) error {
	desired := resize.Desired(s.vmi)
	current, known := resize.Current(s.vmi)
	if desired == (resize.Size{}) || !known || s.final != nil || !s.mayResize() {
		return nil
	}
	granted := resize.Granted(s.vmi, current)
	from := resize.OfPod(s.pod, granted)
	to := resize.ForPod(desired, granted, from)
	view := resize.View{Obstacle: resize.Obstacle(s.vmi, from, to), Unmigratable: s.whyNotMigrated(), Now: s.now}
	if view.Obstacle == "" && from != to {
		refused, err := s.patchResources(ctx, from, to)
		if err != nil {
			return err
		}
		view.Refused, view.Forbidden = refused.always, refused.now
		if view.Refused+view.Forbidden == "" {
			if err := s.markPod(ctx, to); err != nil {
				return err
			}
			from = to
		}
	}
	view.Progress = resize.ProgressOf(s.pod)
	view.Progress.Message = cleanMessage(view.Progress.Message)
	s.resizing = &resizing{verdict: resize.Judge(view)}
	s.resizing.cpus, s.resizing.memory = resize.Pending(desired, current, granted, from)
	s.resizing.taking = granted.Memory == desired.Memory && current.Memory != desired.Memory
	if (s.resizing.cpus || s.resizing.memory) && s.resizing.verdict.Again > 0 {
		s.requeueIn(s.resizing.verdict.Again)
	}
	return nil
}

// mayResize reports whether the guest runs in its Pod and is not about to leave it.
func (s *scope) mayResize() bool {
	return s.vmi.Status.Phase == v1.Running && !s.deleting() && !vmistatus.Migrating(&s.vmi.Status) &&
		s.pod != nil && s.pod.DeletionTimestamp == nil && !podstate.Finished(s.pod)
}

// whyNotMigrated returns why the guest does not migrate by itself, or "" if it does.
func (o *observed) whyNotMigrated() string {
	_, aborted := o.vmi.Annotations[v1.WorkloadUpdateMigrationAbortionAnnotation]
	can := vmistatus.Migratability(&o.vmi.Status)
	switch {
	case can == nil:
		return "it is not known yet whether the VMI can migrate"
	case can.Status != corev1.ConditionTrue:
		return can.Message
	case !o.migratesWorkloads:
		return "spec.workloadUpdateStrategy.workloadUpdateMethods of the KubeVirt object does not contain LiveMigrate"
	case aborted:
		return "the annotation " + v1.WorkloadUpdateMigrationAbortionAnnotation + " forbids it"
	default:
		return ""
	}
}

// podRefusal is the API server's refusal of new resources: for now, as by a quota, or always. Both are "" if there is
// none.
type podRefusal struct{ now, always string }

// patchResources gives the launcher's container the resources for a guest of another size.
func (s *scope) patchResources(ctx context.Context, from, to resize.Size) (podRefusal, error) {
	config := s.podConfig
	if err := SetRequiredLimits(ctx, s.client, s.apiReader, s.vmi, s.config.AutoCPULimitNamespaces, &config); err != nil {
		return podRefusal{}, err
	}
	changed := s.pod.DeepCopy()
	compute := podstate.ComputeContainer(changed)
	if compute == nil {
		return podRefusal{always: "it has no container for the launcher"}, nil
	}
	compute.Resources = resize.ResizedResources(compute.Resources, podspec.Resources(resize.With(s.vmi, to), config), from,
		to)
	if equality.Semantic.DeepEqual(podstate.ComputeContainer(s.pod).Resources, compute.Resources) {
		return podRefusal{}, nil
	}
	err := s.client.SubResource("resize").Patch(ctx, changed,
		client.StrategicMergeFrom(s.pod, client.MergeFromWithOptimisticLock{}))
	if err == nil {
		s.pod = changed
		return podRefusal{}, nil
	}
	return refusalOf(err, s.pod)
}

// tooLargeForNode is part of the API server's message if the whole node has fewer resources than the Pod would need.
// The status of the response is that of an exceeded quota. Source: plugin/pkg/admission/podresize of Kubernetes 1.37.
const tooLargeForNode = "node didn't have enough allocatable resources"

// refusalOf returns the refusal in an error, or the error if it is none.
func refusalOf(err error, pod *corev1.Pod) (podRefusal, error) {
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), tooLargeForNode):
		return podRefusal{always: cleanMessage(err.Error())}, nil
	case apierrors.IsForbidden(err):
		return podRefusal{now: cleanMessage(err.Error())}, nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return podRefusal{always: cleanMessage(err.Error())}, nil
	case apierrors.IsMethodNotSupported(err), apierrors.IsNotFound(err) && !isAbout(err, pod):
		return podRefusal{always: "it cannot resize Pods, which Kubernetes can since 1.33"}, nil
	default:
		return podRefusal{}, fmt.Errorf("resize launcher Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
}

// isAbout reports whether an error names a Pod. One about an unknown path of the API names none.
func isAbout(err error, pod *corev1.Pod) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return false
		}
	}
	return status.Status().Details.Name == pod.Name
}

// markPod writes the size of the guest that the Pod's resources are for. The agent does not read the annotations before
// the kubelet has applied the resources.
func (s *scope) markPod(ctx context.Context, to resize.Size) error {
	overhead := podspec.MemoryOverhead(resize.With(s.vmi, to), s.podConfig)
	marked, err := optimistic.Patch(ctx, s.client, s.pod, func(pod *corev1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations = maps.Clone(pod.Annotations)
		resize.Annotate(pod.Annotations, to)
		pod.Annotations[v1.MemoryOverheadAnnotationBytes] = strconv.FormatInt(overhead.Value(), 10)
	})
	if err != nil {
		return fmt.Errorf("annotate launcher Pod %s/%s with the size of its guest: %w", s.pod.Namespace, s.pod.Name, err)
	}
	s.pod = marked
	return nil
}

// requeueIn makes the next reconciliation start after a delay, if nothing triggers it earlier.
func (r *result) requeueIn(delay time.Duration) {
	r.requeueAfter = outcome.Sooner(r.requeueAfter, delay)
}

// setResizing sets the conditions about a change of the guest's CPUs or memory. While the guest migrates, they stay.
func setResizing(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	if r.resizing == nil {
		return
	}
	now, verdict := metav1.NewTime(o.now), r.resizing.verdict
	for _, change := range []struct {
		kind    v1.VirtualMachineInstanceConditionType
		pending bool
	}{
		{v1.VirtualMachineInstanceVCPUChange, r.resizing.cpus}, {v1.VirtualMachineInstanceMemoryChange, r.resizing.memory},
	} {
		if !change.pending {
			vmistatus.RemoveCondition(status, change.kind)
			continue
		}
		condition := v1.VirtualMachineInstanceCondition{
			Type: change.kind, Status: corev1.ConditionTrue, Reason: verdict.Reason, Message: verdict.Message,
		}
		if verdict.Restart {
			condition.Status = corev1.ConditionFalse
		}
		if verdict.Reason == "" && change.kind == v1.VirtualMachineInstanceMemoryChange && r.resizing.taking {
			condition.Reason, condition.Message = resize.ReasonGuest, guestTakes
		}
		vmistatus.SetCondition(status, condition, now)
	}
}
