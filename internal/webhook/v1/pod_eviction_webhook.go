// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// The match condition selects launcher Pods and attachment Pods by the prefixes of their names, because an Eviction
// does not have the labels of its Pod. Handle allows evictions of other Pods with these prefixes.
//
// failurePolicy is "fail": without this webhook an eviction could stop a guest that is to be migrated.
//
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=NoneOnDryRun,groups="",resources=pods/eviction,verbs=create,versions=v1,name=virt-launcher-eviction-interceptor.kubevirt.io,admissionReviewVersions=v1,patch=`{"matchConditions":[{"name":"is-launcher","expression":"request.name.startsWith('virt-launcher-') || request.name.startsWith('hp-volume-')"}]}`

// withoutKeepAlive closes each connection after its first request. On a connection that is kept open, a request could
// arrive at the moment when this process stops and closes its idle connections. The request would fail, and with it
// kubectl drain. A drain of the node on which this process runs makes that likely, because it repeats its evictions
// after about the grace period of the Pod.
func withoutKeepAlive(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		handler.ServeHTTP(w, r)
	})
}

// evictionInterceptor marks VMIs for evacuation when a client evicts their launcher Pods.
type evictionInterceptor struct {
	config ConfigSource
	// apiReader reads from the API server, because a decision from a stale cache could stop a guest.
	apiReader client.Reader
	writer    client.Client
	// liveMigration reports whether this installation can migrate guests.
	liveMigration bool
}

// Handle implements admission.Handler. It returns the code 429 for every error, so that a drain retries.
func (e *evictionInterceptor) Handle(ctx context.Context, request admission.Request) admission.Response {
	evict := &policyv1.Eviction{}
	if err := json.Unmarshal(request.Object.Raw, evict); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("cannot read the eviction: %w", err))
	}
	var err error
	var decision eviction.Decision
	// After a conflict with another writer of the VMI, decide again.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		key := client.ObjectKey{Namespace: request.Namespace, Name: request.Name}
		decision, err = e.decide(ctx, key, eviction.SourceOf(evict.Annotations), isDryRun(request, evict))
		return err
	})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot decide about an eviction", "pod", request.Namespace+"/"+request.Name)
		return tooMany(err.Error())
	}
	if decision.Allowed {
		return admission.Allowed("")
	}
	return tooMany(decision.Message)
}

// tooMany denies a request with the code 429. It sets no retry delay, because clients would then retry without showing
// the message.
func tooMany(message string) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
	}}}
}

// isDryRun reports whether the request or the Eviction itself is a dry run.
func isDryRun(request admission.Request, evict *policyv1.Eviction) bool {
	return request.DryRun != nil && *request.DryRun ||
		evict.DeleteOptions != nil && slices.Contains(evict.DeleteOptions.DryRun, metav1.DryRunAll)
}

// decide decides about the eviction of a Pod. If the guest is to be migrated, it marks the VMI, unless the request is a
// dry run.
func (e *evictionInterceptor) decide(
	ctx context.Context, key client.ObjectKey, source string, dryRun bool,
) (eviction.Decision, error) {
	allowed := eviction.Decision{Allowed: true}
	pod := &corev1.Pod{}
	if err := e.apiReader.Get(ctx, key, pod); err != nil {
		if apierrors.IsNotFound(err) {
			return allowed, nil // The API server reports that the Pod does not exist.
		}
		return allowed, fmt.Errorf("kubevirt failed getting the Pod: %w", err)
	}
	// Not by its annotation: an attachment Pod of KubeVirt has none.
	if pod.Labels[v1.AppLabel] == launcherpod.AttachmentLabelValue {
		return e.decideAttachment(ctx, pod)
	}
	name := pod.Annotations[v1.DomainAnnotation]
	if pod.Labels[v1.AppLabel] != launcherpod.AppLabelValue || name == "" {
		return allowed, nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := e.apiReader.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, vmi); err != nil {
		if !apierrors.IsNotFound(err) {
			return allowed, fmt.Errorf("kubevirt failed getting the vmi: %w", err)
		}
		vmi = nil
	}
	decision := eviction.Decide(eviction.Facts{
		Pod: pod, VMI: vmi, Default: e.config.Current().EvictionStrategy, LiveMigration: e.liveMigration,
	})
	if !decision.Mark || dryRun {
		return decision, nil
	}
	err := e.setSource(ctx, vmi, source)
	if err == nil {
		err = e.mark(ctx, vmi)
	}
	if err == nil {
		err = e.annotate(ctx, pod)
	}
	if err != nil {
		return decision, fmt.Errorf("kubevirt failed marking the vmi for eviction: %w", err)
	}
	return decision, nil
}

// keepsAttachment denies the eviction of an attachment Pod. KubeVirt's message.
const keepsAttachment = "cannot evict hotplug pod: %s associated with running vmi: %s in namespace %s"

// decideAttachment denies the eviction of an attachment Pod whose launcher runs: the guest would lose the disk. It is
// deleted with the launcher Pod, which a drain evicts as well.
func (e *evictionInterceptor) decideAttachment(ctx context.Context, pod *corev1.Pod) (eviction.Decision, error) {
	allowed := eviction.Decision{Allowed: true}
	of := podspec.AttachmentLauncher(pod)
	if of == nil || podstate.TerminalOrDeleted(pod) {
		return allowed, nil
	}
	launcher := &corev1.Pod{}
	if err := e.apiReader.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: of.Name}, launcher); err != nil {
		if !apierrors.IsNotFound(err) {
			return allowed, fmt.Errorf("kubevirt failed getting the launcher Pod: %w", err)
		}
		return allowed, nil
	}
	if launcher.UID != of.UID || launcher.Labels[v1.AppLabel] != launcherpod.AppLabelValue || podstate.Finished(launcher) {
		return allowed, nil
	}
	return eviction.Decision{Message: fmt.Sprintf(keepsAttachment, pod.Name, launcher.Annotations[v1.DomainAnnotation],
		pod.Namespace)}, nil
}

// annotate records on the Pod whether its node is cordoned. It is called after mark, because the annotations have no
// meaning without the mark.
func (e *evictionInterceptor) annotate(ctx context.Context, pod *corev1.Pod) error {
	node := &corev1.Node{}
	if err := e.apiReader.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Node %s: %w", pod.Spec.NodeName, err)
	}
	changed := pod.DeepCopy()
	eviction.Annotate(&changed.ObjectMeta, node.Spec.Unschedulable)
	return e.writer.Patch(ctx, changed, client.MergeFrom(pod))
}

// setSource records the source of the eviction on the VMI. It is called before mark, because the migration that follows
// the mark depends on it.
func (e *evictionInterceptor) setSource(ctx context.Context, vmi *v1.VirtualMachineInstance, source string) error {
	if vmi.Annotations[v1.EvictionSourceAnnotation] == source {
		return nil
	}
	before := vmi.DeepCopy()
	if source == "" {
		delete(vmi.Annotations, v1.EvictionSourceAnnotation)
	} else {
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.EvictionSourceAnnotation, source)
	}
	return e.writer.Patch(ctx, vmi, optimistic.MergeFrom(before))
}

func (e *evictionInterceptor) mark(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	marked := vmi.DeepCopy()
	eviction.Mark(&marked.Status, metav1.NewTime(time.Now()))
	_, err := vmistatus.Patch(ctx, e.writer, vmistatus.Controller, vmi, marked)
	return err
}
