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
	"github.com/vireo-project/vireo/internal/eviction"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// An eviction is an object of its own, without the Pod's labels: the name of the Pod is all that tells the API server which of them
// concern us. Every launcher Pod's begins like that, and a Pod of somebody else's that does so is let go by Handle.
//
// Nobody but us can tell whether an eviction would kill a guest that was to be moved, so that without an answer it is refused.
//
// +kubebuilder:webhook:path=/launcher-eviction-validate,mutating=false,failurePolicy=fail,sideEffects=NoneOnDryRun,groups="",resources=pods/eviction,verbs=create,versions=v1,name=virt-launcher-eviction-interceptor.kubevirt.io,admissionReviewVersions=v1,patch=`{"matchConditions":[{"name":"is-launcher","expression":"request.name.startsWith('virt-launcher-')"}]}`

// withoutKeepAlive has a connection closed with the answer to its first request. The API server would keep it for the next one, which is
// lost if it comes at the moment that this process is stopped and closes what is idle: to kubectl that is the end of a drain, and a
// drain that stops this process has it happen, as it asks again for each guest after the seconds that a stopped Pod is given.
func withoutKeepAlive(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		handler.ServeHTTP(w, r)
	})
}

// evictionInterceptor has guests moved whose Pods somebody evicts.
type evictionInterceptor struct {
	config ConfigSource
	// live reads from the API server: a cache that is behind must not kill a guest.
	live   client.Reader
	writer client.Client
	// liveMigration says that this installation can migrate guests.
	liveMigration bool
}

// Handle implements admission.Handler. Whatever keeps it from an answer is for now: the code 429 makes a drain try again.
func (e *evictionInterceptor) Handle(ctx context.Context, request admission.Request) admission.Response {
	asked := &policyv1.Eviction{}
	if err := json.Unmarshal(request.Object.Raw, asked); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("cannot read the eviction: %w", err))
	}
	var err error
	var answer eviction.Answer
	// Somebody else may write the VMI in between. What that means for the eviction is judged anew.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		key := client.ObjectKey{Namespace: request.Namespace, Name: request.Name}
		answer, err = e.answer(ctx, key, eviction.SourceOf(asked.Annotations), isDryRun(request, asked))
		return err
	})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot answer an eviction", "pod", request.Namespace+"/"+request.Name)
		return tooMany(err.Error())
	}
	if answer.Allowed {
		return admission.Allowed("")
	}
	return tooMany(answer.Message)
}

// tooMany denies a request for now. There is no time after which to try again: clients would do so without telling anybody.
func tooMany(message string) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
	}}}
}

// isDryRun says that nothing must be changed. An eviction may say so itself, in each of its versions.
func isDryRun(request admission.Request, asked *policyv1.Eviction) bool {
	return request.DryRun != nil && *request.DryRun ||
		asked.DeleteOptions != nil && slices.Contains(asked.DeleteOptions.DryRun, metav1.DryRunAll)
}

// answer decides about a Pod, and marks its VMI if the guest is to move.
func (e *evictionInterceptor) answer(ctx context.Context, key client.ObjectKey, source string, dry bool) (eviction.Answer, error) {
	allowed := eviction.Answer{Allowed: true}
	pod := &corev1.Pod{}
	if err := e.live.Get(ctx, key, pod); err != nil {
		if apierrors.IsNotFound(err) {
			return allowed, nil // The API server will say so.
		}
		return allowed, fmt.Errorf("kubevirt failed getting the Pod: %w", err)
	}
	name := pod.Annotations[v1.DomainAnnotation]
	if pod.Labels[v1.AppLabel] != podspec.LauncherAppValue || name == "" {
		return allowed, nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := e.live.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, vmi); err != nil {
		if !apierrors.IsNotFound(err) {
			return allowed, fmt.Errorf("kubevirt failed getting the vmi: %w", err)
		}
		vmi = nil
	}
	answer := eviction.Decide(eviction.Facts{
		Pod: pod, VMI: vmi, Default: e.config.Current().EvictionStrategy, LiveMigration: e.liveMigration,
	})
	if !answer.Mark || dry {
		return answer, nil
	}
	err := e.name(ctx, vmi, source)
	if err == nil {
		err = e.mark(ctx, vmi)
	}
	if err == nil {
		err = e.annotate(ctx, pod)
	}
	if err != nil {
		return answer, fmt.Errorf("kubevirt failed marking the vmi for eviction: %w", err)
	}
	return answer, nil
}

// annotate notes with the Pod whether its node is being drained. It comes after the mark, without which the annotations mean nothing.
func (e *evictionInterceptor) annotate(ctx context.Context, pod *corev1.Pod) error {
	node := &corev1.Node{}
	if err := e.live.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Node %s: %w", pod.Spec.NodeName, err)
	}
	changed := pod.DeepCopy()
	eviction.Annotate(&changed.ObjectMeta, node.Spec.Unschedulable)
	return e.writer.Patch(ctx, changed, client.MergeFrom(pod))
}

// name notes with the VMI who evicts it. It comes before the mark, which has it migrate by what the annotation says.
func (e *evictionInterceptor) name(ctx context.Context, vmi *v1.VirtualMachineInstance, source string) error {
	if vmi.Annotations[v1.EvictionSourceAnnotation] == source {
		return nil
	}
	before := vmi.DeepCopy()
	if source == "" {
		delete(vmi.Annotations, v1.EvictionSourceAnnotation)
	} else {
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.EvictionSourceAnnotation, source)
	}
	return e.writer.Patch(ctx, vmi, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func (e *evictionInterceptor) mark(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	marked := vmi.DeepCopy()
	eviction.Mark(&marked.Status, metav1.NewTime(time.Now()))
	_, err := vmistatus.Patch(ctx, e.writer, vmistatus.Controller, vmi, marked)
	return err
}
