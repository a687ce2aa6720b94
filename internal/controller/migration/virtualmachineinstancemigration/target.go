// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// How long a target's Pod may be unschedulable, and how long it may be pending for any reason. KubeVirt's values.
const (
	unschedulableTimeout = 5 * time.Minute
	pendingTimeout       = 15 * time.Minute
)

// render builds the target's Pod. It returns nil if that is impossible, and sets Failure to the reason.
func (s *Scope) render(ctx context.Context) (*corev1.Pod, error) {
	config := s.Config
	var err error
	if config.Claims, err = s.claims(ctx); err != nil {
		return nil, err
	}
	if config.VolumeAffinities, err = virtualmachineinstance.VolumeAffinities(ctx, s.Client, s.APIReader, s.VMI,
		config); err != nil {
		return nil, err
	}
	if s.ReadNetworks {
		resources, missing, err := virtualmachineinstance.NetworkResources(ctx, s.APIReader, s.VMI)
		if err != nil || missing != "" {
			s.Failure = missing
			return nil, err
		}
		config.NetworkResources = resources
	}
	if config.MigrationNetwork, err = virtualmachineinstance.MigrationNetwork(ctx, s.APIReader,
		config.MigrationNetwork); err != nil {
		return nil, err
	}
	if err := virtualmachineinstance.SetRequiredLimits(ctx, s.Client, s.APIReader, s.VMI, s.AutoCPULimit,
		&config); err != nil {
		return nil, err
	}
	if err := s.planState(ctx, &config); err != nil {
		return nil, err
	}
	configuration, _, err := s.configuration(ctx)
	if err != nil {
		return nil, err
	}
	target := podspec.Target{
		Name: s.Migration.Name, UID: s.Migration.UID, AddedNodeSelector: s.Migration.Spec.AddedNodeSelector,
		PostCopy: ptr.Deref(configuration.AllowPostCopy, false),
	}
	target.Images = podspec.PinnedImages(s.Own)
	if !config.UseEmulation {
		node := &metav1.PartialObjectMetadata{}
		node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		if err := s.Client.Get(ctx, client.ObjectKey{Name: s.VMI.Status.NodeName}, node); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get Node %s: %w", s.VMI.Status.NodeName, err)
		}
		if target.CPU, err = podspec.TargetCPUSelector(s.VMI, s.VMI.Status.NodeName, node.Labels,
			s.Own.Spec.NodeSelector); err != nil {
			return nil, err
		}
	}
	if *s.Migrations.MatchSELinuxLevelOnMigration {
		target.SELinuxLevel = podspec.SELinuxLevel(s.VMI.Status.SelinuxContext)
	}
	pod, err := buildTarget(s.VMI, s.Own, config, target)
	if err != nil {
		s.Failure = fmt.Sprintf("The target's Pod cannot be made: %v", err)
		return nil, nil // a retry would fail as well
	}
	return pod, nil
}

// buildTarget builds the target's Pod for all that the guest has: a guest that is to return memory may still have it.
// own is its Pod.
func buildTarget(
	vmi *v1.VirtualMachineInstance, own *corev1.Pod, config podspec.Config, target podspec.Target,
) (*corev1.Pod, error) {
	return podspec.BuildTarget(resize.With(vmi, resize.ForTarget(vmi, own)), config, target)
}

// claims describes the claims of the VMI's volumes.
func (s *Scope) claims(ctx context.Context) (map[string]podspec.Claim, error) {
	out := map[string]podspec.Claim{}
	for i := range s.VMI.Spec.Volumes {
		volume := &s.VMI.Spec.Volumes[i]
		name := podspec.ClaimName(volume)
		if name == "" {
			continue
		}
		claim, key := &corev1.PersistentVolumeClaim{}, client.ObjectKey{Namespace: s.VMI.Namespace, Name: name}
		if err := s.Client.Get(ctx, key, claim); err != nil {
			return nil, fmt.Errorf("get PersistentVolumeClaim %s of volume %s: %w", key, volume.Name, err)
		}
		out[volume.Name] = podspec.Claim{Block: vmistatus.IsBlockClaim(claim)}
	}
	return out, nil
}

// awaitTarget fails the migration if the target's Pod is not scheduled, or does not start, in time.
func awaitTarget(ctx context.Context, s *Scope) error {
	pod := s.Target
	if s.Failure != "" || s.state() != nil || pod == nil || pod.Status.Phase != corev1.PodPending ||
		pod.DeletionTimestamp != nil {
		return nil
	}
	age := s.Now.Sub(pod.CreationTimestamp.Time)
	limit := s.timeout(v1.MigrationPendingPodTimeoutSecondsAnnotation, pendingTimeout)
	failure := fmt.Sprintf("pending pod %s/%s timeout period exceeded", pod.Namespace, pod.Name)
	if unschedulable(pod) {
		s.event(corev1.EventTypeWarning, ReasonUnschedulable, actionWait,
			"Migration target pod for VMI [%s/%s] is currently unschedulable.", s.VMI.Namespace, s.VMI.Name)
		if err := s.warnOfCPU(ctx); err != nil {
			return err
		}
		if short := s.timeout(v1.MigrationUnschedulablePodTimeoutSecondsAnnotation, unschedulableTimeout); short < limit {
			limit, failure = short, fmt.Sprintf("unschedulable pod %s/%s timeout period exceeded", pod.Namespace, pod.Name)
		}
	}
	if age < limit {
		s.RequeueAfter = outcome.Sooner(s.RequeueAfter, limit-age)
		return nil
	}
	if assigned, err := s.isAssigned(ctx); err != nil || assigned {
		return err
	}
	return s.fail(ctx, withReason(failure, scheduler(pod)))
}

// timeout returns the duration in an annotation, in seconds, or the default if it is not valid.
func (s *Scope) timeout(annotation string, otherwise time.Duration) time.Duration {
	seconds, err := strconv.ParseUint(s.Migration.Annotations[annotation], 10, 31)
	if err != nil {
		return otherwise
	}
	return time.Duration(seconds) * time.Second
}

func unschedulable(pod *corev1.Pod) bool {
	c := podstate.Condition(pod, corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}

// scheduler returns the scheduler's message about a Pod that it cannot schedule.
func scheduler(pod *corev1.Pod) string {
	c := podstate.Condition(pod, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse {
		return ""
	}
	return c.Message
}

// warnOfCPU records an event if no other node has the guest's CPU, because the scheduler's message about it is hard to
// understand.
func (s *Scope) warnOfCPU(ctx context.Context) error {
	wanted := map[string]string{}
	for key, value := range s.Target.Spec.NodeSelector {
		if podspec.IsHostCPULabel(key) {
			wanted[key] = value
		}
	}
	if !podspec.DependsOnHostCPU(s.VMI) || len(wanted) == 0 {
		return nil
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := s.Client.List(ctx, nodes, client.MatchingLabels(wanted)); err != nil {
		return fmt.Errorf("list the nodes that can run the guest's CPU: %w", err)
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name != s.VMI.Status.NodeName {
			return nil
		}
	}
	s.Recorder.Eventf(s.VMI, s.Migration, corev1.EventTypeWarning, ReasonNoSuitableNodes, actionWait,
		"Migration cannot proceed since no node is suitable to run the required CPU model / required features: %v", wanted)
	return nil
}

// sameClaims reports whether the target's Pod has the claims that the VMI's spec names. The assignment is written with
// an optimistic lock on the VMI, whose volumes are not changed after that until the migration has ended.
func sameClaims(vmi *v1.VirtualMachineInstance, target *corev1.Pod) bool {
	wanted := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		// A hotplugged volume is in an attachment Pod.
		if claim := podspec.ClaimName(v); claim != "" && (!v.IsHotpluggable() || podspec.HasClaim(target, claim)) {
			wanted[claim] = true
		}
	}
	return maps.Equal(wanted, diskClaims(target))
}

// diskClaims returns the claims of a Pod except the one with the guest's persistent state, which no volume of the spec
// names.
func diskClaims(pod *corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil && v.Name != launcherpod.StateVolume {
			out[v.PersistentVolumeClaim.ClaimName] = true
		}
	}
	return out
}
