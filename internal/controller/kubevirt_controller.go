// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kubevirt"
	"github.com/vireo-project/vireo/internal/operator"
)

// KubeVirtReconciler installs what a KubeVirt object asks for, and removes it with the object.
type KubeVirtReconciler struct {
	client.Client
	// Live reads from the API server: the cache does not have the Pods of components.
	Live client.Reader
	// Namespace is the install namespace. Only a KubeVirt object in it counts.
	Namespace string
	// KubeletRoot is the kubelet's root directory on the nodes.
	KubeletRoot string
	// Options are those of the configuration: the images that this build belongs to.
	Options []clusterconfig.Option
	// Recorder sends the warning about certificates that are not renewed in time.
	Recorder events.EventRecorder
	// Clock replaces the time in tests.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts/status,verbs=patch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=core,resources=pods,verbs=list
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines;virtualmachineinstances;virtualmachineinstancereplicasets,verbs=list;watch;delete
// +kubebuilder:rbac:groups=apps,namespace=kubevirt,resources=daemonsets,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,namespace=kubevirt,resources=deployments,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,namespace=kubevirt,resources=poddisruptionbudgets,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=services;configmaps,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apiregistration.k8s.io,resources=apiservices,verbs=list;watch
// +kubebuilder:rbac:groups=apiregistration.k8s.io,resources=apiservices,resourceNames=v1.subresources.kubevirt.io;v1alpha3.subresources.kubevirt.io,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=secrets,resourceNames=kubevirt-virt-handler-serving-ca;kubevirt-virt-handler-migration-ca;kubevirt-virt-api-client-ca;kubevirt-virt-api-serving-ca,verbs=update;delete

// What the process around the reconcilers needs: who may get metrics, and the webhooks' certificate and its CA.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,verbs=list;watch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=virt-controller-mutating-webhook-configuration,verbs=update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=virt-controller-validating-webhook-configuration,verbs=update
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=secrets,verbs=create;list;watch
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=secrets,resourceNames=kubevirt-controller-certs,verbs=update

// SetupWithManager adds the reconciler to a manager.
func (r *KubeVirtReconciler) SetupWithManager(mgr ctrl.Manager) error {
	everyKubeVirt := handler.EnqueueRequestsFromMapFunc(r.all)
	of := func(label, value string) builder.Predicates {
		return builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			return o.GetNamespace() == r.Namespace && o.GetLabels()[label] == value
		}))
	}
	ours, authority := of(operator.ManagedByLabel, operator.ManagedBy), of(v1.AppLabel, certificate.AuthorityLabelValue)
	apiServices := &metav1.PartialObjectMetadata{}
	apiServices.SetGroupVersionKind(operator.APIServiceKind)
	cluster := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetLabels()[operator.ManagedByLabel] == operator.ManagedBy
	}))
	// A workload matters only when it goes, to a deletion that waits for it.
	gone := builder.WithPredicates(predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("kubevirt").
		// Our own status writes do not bring us back.
		For(&v1.KubeVirt{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&appsv1.DaemonSet{}, everyKubeVirt, ours).
		Watches(&appsv1.Deployment{}, everyKubeVirt, ours).
		Watches(&policyv1.PodDisruptionBudget{}, everyKubeVirt, ours).
		Watches(&corev1.Service{}, everyKubeVirt, ours).
		Watches(&corev1.ConfigMap{}, everyKubeVirt, ours).
		Watches(&corev1.Secret{}, everyKubeVirt, authority).
		// One that stays unanswered is told of.
		Watches(&certificatesv1.CertificateSigningRequest{}, everyKubeVirt, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			csr, ok := o.(*certificatesv1.CertificateSigningRequest)
			return ok && kubevirt.Unanswered(csr)
		}))).
		WatchesMetadata(apiServices, everyKubeVirt, cluster).
		Watches(&v1.VirtualMachine{}, everyKubeVirt, gone).
		Watches(&v1.VirtualMachineInstance{}, everyKubeVirt, gone).
		// When one of two objects goes, the other may count from now on.
		Watches(&v1.KubeVirt{}, everyKubeVirt, gone).
		Complete(r)
}

func (r *KubeVirtReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return concerned(ctx, r.Client, &v1.KubeVirtList{})
}

// Reconcile brings the cluster to what one KubeVirt object asks for.
func (r *KubeVirtReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kv, err := r.fetch(ctx, request)
	if kv == nil || err != nil {
		return ctrl.Result{}, err
	}
	original := kv.DeepCopy()
	scope := r.scope(kv)

	all := &v1.KubeVirtList{}
	if err := r.List(ctx, all); err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot list KubeVirt objects: %w", err)
	}
	scope.CheckConflict(all.Items)

	deleting := kv.DeletionTimestamp != nil
	switch {
	case scope.Conflict != "" && deleting:
		// It installed nothing.
		return result(r.release(ctx, kv), 0)
	case scope.Conflict != "":
	case deleting:
		scope.Uninstall = kubevirt.Remove(ctx, scope)
	default:
		// 1. The finalizer goes on before anything is installed that it has to remove.
		if err := r.hold(ctx, kv); err != nil {
			return result(err, 0)
		}
		original = kv.DeepCopy()
		scope.InstallErr = kubevirt.Install(ctx, scope)
	}
	return result(r.finish(ctx, scope, original), scope.UntilLook())
}

func (r *KubeVirtReconciler) scope(kv *v1.KubeVirt) *kubevirt.Scope {
	s := &kubevirt.Scope{Client: r.Client, Live: r.Live, Namespace: r.Namespace, KubeletRoot: r.KubeletRoot, KubeVirt: kv, Now: now(r.Clock)}
	s.Config, s.ConfigErr = clusterconfig.FromKubeVirt(kv, r.Options...)
	return s
}

// DeploymentID identifies what a KubeVirt object asks this build to install. It is known without asking the cluster.
func (r *KubeVirtReconciler) DeploymentID(kv *v1.KubeVirt) (string, error) {
	return kubevirt.DeploymentID(r.scope(kv))
}

// finish writes the status when it changed, takes the finalizer away at the end, and gives what has to be retried.
func (r *KubeVirtReconciler) finish(ctx context.Context, s *kubevirt.Scope, original *v1.KubeVirt) error {
	kubevirt.Status(s, s.Now)
	if !equality.Semantic.DeepEqual(original.Status, s.KubeVirt.Status) {
		// The reconciler of workload updates writes some of it, too: a list of conditions written meanwhile must not get lost.
		lock := client.MergeFromWithOptions(original, client.MergeFromWithOptimisticLock{})
		if err := r.Status().Patch(ctx, s.KubeVirt.DeepCopy(), lock); err != nil {
			return client.IgnoreNotFound(fmt.Errorf("cannot write the status: %w", err))
		}
		r.warn(original, s)
	}
	switch {
	case s.Uninstall.Done:
		return r.release(ctx, s.KubeVirt)
	case s.Uninstall.Err != nil:
		return s.Uninstall.Err
	}
	return s.InstallErr
}

// warn sends an event when the status begins to say that certificates are not renewed in time.
func (r *KubeVirtReconciler) warn(original *v1.KubeVirt, s *kubevirt.Scope) {
	told := slices.ContainsFunc(original.Status.Conditions, func(c v1.KubeVirtCondition) bool {
		return c.Type == v1.KubeVirtConditionDegraded && c.Reason == kubevirt.ReasonCertificateRotationOverdue
	})
	if len(s.Overdue) > 0 && !told {
		r.Recorder.Eventf(s.KubeVirt, nil, corev1.EventTypeWarning, kubevirt.ReasonCertificateRotationOverdue, "Rotate", "%s", strings.Join(s.Overdue, "; "))
	}
}

func (r *KubeVirtReconciler) fetch(ctx context.Context, request ctrl.Request) (*v1.KubeVirt, error) {
	kv := &v1.KubeVirt{}
	if err := r.Get(ctx, request.NamespacedName, kv); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if kv.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(kv, kubevirt.Finalizer) {
		return nil, nil
	}
	return kv, nil
}

// hold puts the finalizer on. The lock makes sure that a list of finalizers written meanwhile is not lost.
func (r *KubeVirtReconciler) hold(ctx context.Context, kv *v1.KubeVirt) error {
	before := kv.DeepCopy()
	if !controllerutil.AddFinalizer(kv, kubevirt.Finalizer) {
		return nil
	}
	if err := r.Patch(ctx, kv, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("cannot add the finalizer: %w", err)
	}
	return nil
}

func (r *KubeVirtReconciler) release(ctx context.Context, kv *v1.KubeVirt) error {
	latest := &v1.KubeVirt{}
	if err := r.Get(ctx, client.ObjectKeyFromObject(kv), latest); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := latest.DeepCopy()
	if !controllerutil.RemoveFinalizer(latest, kubevirt.Finalizer) {
		return nil
	}
	if err := r.Patch(ctx, latest, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot remove the finalizer: %w", err)
	}
	return nil
}
