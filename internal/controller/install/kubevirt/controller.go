// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/commoninstancetypes"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/prometheus"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/outcome"
)

// Reconciler installs what a KubeVirt object specifies, and removes it when the object is deleted.
type Reconciler struct {
	client.Client
	// APIReader reads from the API server: the cache does not contain the Pods of components.
	APIReader client.Reader
	// Namespace is the install namespace. KubeVirt objects elsewhere install nothing.
	Namespace string
	// KubeletRoot is the kubelet's root directory on the nodes.
	KubeletRoot string
	// MetricsAuthorization restricts the metrics of what is installed to clients that may get the URL /metrics.
	MetricsAuthorization bool
	// Options of the configuration: the images of this build.
	Options []clusterconfig.Option
	// Recorder records the warnings about certificates that are not renewed in time, and about an update that has failed.
	Recorder events.EventRecorder
	// Clock replaces the time in tests.
	Clock clock.PassiveClock
	// RunbookURL is a template of the addresses of runbooks, as in rules.Settings.
	RunbookURL string
	// Monitoring installs the objects for Prometheus. Nil means none; SetupWithManager sets it.
	Monitoring *prometheus.Installer
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts/status,verbs=patch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=core,resources=pods,verbs=list
// +kubebuilder:rbac:groups=core,resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines;virtualmachineinstances;virtualmachineinstancereplicasets,verbs=list;watch;delete
// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools,verbs=list;watch;delete
// +kubebuilder:rbac:groups=apps,namespace=kubevirt,resources=daemonsets,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,namespace=kubevirt,resources=deployments,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,namespace=kubevirt,resources=poddisruptionbudgets,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=services;configmaps,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apiregistration.k8s.io,resources=apiservices,verbs=list;watch
// +kubebuilder:rbac:groups=apiregistration.k8s.io,resources=apiservices,resourceNames=v1.subresources.kubevirt.io;v1alpha3.subresources.kubevirt.io,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=secrets,resourceNames=kubevirt-virt-handler-serving-ca;kubevirt-virt-handler-migration-ca;kubevirt-virt-handler-backup-ca;kubevirt-virt-api-client-ca;kubevirt-virt-api-serving-ca;kubevirt-virt-exporter-ca;kubevirt-virt-exportproxy-serving-ca,verbs=update;delete
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=servicemonitors.monitoring.coreos.com;prometheusrules.monitoring.coreos.com,verbs=list;watch
// +kubebuilder:rbac:groups=monitoring.coreos.com,resources=servicemonitors,resourceNames=prometheus-kubevirt-rules,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=monitoring.coreos.com,namespace=kubevirt,resources=prometheusrules,resourceNames=prometheus-kubevirt-rules,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,namespace=kubevirt,resources=roles;rolebindings,resourceNames=kubevirt-monitoring,verbs=list;watch;create;patch;delete
// The permissions of the Role kubevirt-monitoring, which is for Prometheus. A client can grant only permissions that it
// has itself.
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=services;endpoints,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,namespace=kubevirt,resources=endpointslices,verbs=get;list;watch

// What the process around the reconcilers needs: who may get metrics, and the webhooks' certificate and its CA.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,verbs=list;watch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=virt-controller-mutating-webhook-configuration,verbs=update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=virt-controller-validating-webhook-configuration,verbs=update
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=secrets,verbs=create;list;watch
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=secrets,resourceNames=kubevirt-controller-certs,verbs=update

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	everyKubeVirt := handler.EnqueueRequestsFromMapFunc(r.all)
	of := func(label, value string) builder.Predicates {
		return builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			return o.GetNamespace() == r.Namespace && o.GetLabels()[label] == value
		}))
	}
	managed := of(manifests.ManagedByLabel, manifests.ManagedBy)
	authority := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == r.Namespace &&
			(o.GetLabels()[v1.AppLabel] == certificate.AuthorityLabelValue || o.GetName() == certificate.WebhooksSecret)
	}))
	apiServices := &metav1.PartialObjectMetadata{}
	apiServices.SetGroupVersionKind(manifests.APIServiceKind)
	cluster := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetLabels()[manifests.ManagedByLabel] == manifests.ManagedBy
	}))
	// Only the deletion of a workload matters: an uninstallation may be waiting for it.
	gone := builder.WithPredicates(kit.Deletions)
	monitoring, err := r.monitoring(mgr)
	if err != nil {
		return err
	}
	controlled := ctrl.NewControllerManagedBy(mgr).
		Named("kubevirt").
		// Our own status writes do not trigger a reconciliation.
		For(&v1.KubeVirt{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&appsv1.DaemonSet{}, everyKubeVirt, managed).
		Watches(&appsv1.Deployment{}, everyKubeVirt,
			builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
				return o.GetNamespace() == r.Namespace &&
					(o.GetLabels()[manifests.ManagedByLabel] == manifests.ManagedBy || o.GetName() == manifests.ControllerName)
			}))).
		Watches(&corev1.Node{}, everyKubeVirt, builder.WithPredicates(nodeChanges)).
		Watches(&policyv1.PodDisruptionBudget{}, everyKubeVirt, managed).
		Watches(&corev1.Service{}, everyKubeVirt, managed).
		Watches(&corev1.ConfigMap{}, everyKubeVirt, managed).
		Watches(&corev1.Secret{}, everyKubeVirt, authority).
		// A request that stays pending is reported in the status.
		Watches(&certificatesv1.CertificateSigningRequest{}, everyKubeVirt, builder.WithPredicates(pendingRequests)).
		WatchesMetadata(apiServices, everyKubeVirt, cluster).
		// When one of two objects is deleted, the other may become active.
		Watches(&v1.KubeVirt{}, everyKubeVirt, gone).
		WatchesRawSource(monitoring)
	for _, a := range awaited {
		controlled.Watches(a.kind, handler.EnqueueRequestsFromMapFunc(r.uninstalling), gone)
	}
	commoninstancetypes.Watch(controlled, everyKubeVirt)
	return outcome.Complete(controlled, r)
}

// uninstalling returns the KubeVirt objects that are being deleted. Only they wait for the deletion of workloads, which
// tenants delete at any rate.
func (r *Reconciler) uninstalling(ctx context.Context, _ client.Object) []reconcile.Request {
	return slices.DeleteFunc(r.all(ctx, nil), func(request reconcile.Request) bool {
		kv := &v1.KubeVirt{}
		return r.Get(ctx, request.NamespacedName, kv) != nil || kv.DeletionTimestamp == nil
	})
}

// monitoring sets Monitoring, and returns the source of its events.
func (r *Reconciler) monitoring(mgr ctrl.Manager) (source.Source, error) {
	objects, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("cannot make a client: %w", err)
	}
	watching, err := metadata.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("cannot make a client: %w", err)
	}
	r.Monitoring = &prometheus.Installer{
		Dynamic: objects, Reader: r.APIReader, Namespace: r.Namespace, RunbookURL: r.RunbookURL,
		Authorize: r.MetricsAuthorization,
	}
	return r.Monitoring.Source(watching, func(ctx context.Context) []reconcile.Request { return r.all(ctx, nil) }), nil
}

// nodeChanges selects the changes of a Node on which it depends how many Pods virt-api has, and whether an agent can be
// replaced.
var nodeChanges = kit.Updates(func(before, after *corev1.Node) bool {
	return before.Labels[v1.NodeSchedulable] != after.Labels[v1.NodeSchedulable] || isLost(before) != isLost(after)
})

// pendingRequests selects the requests for certificates that are pending, and those that no longer are, after which the
// status has to report them no more.
var pendingRequests = predicate.Or(kit.Objects(IsPending), kit.ExceptCreations(kit.ExceptDeletions(
	kit.Updates(func(before, _ *certificatesv1.CertificateSigningRequest) bool { return IsPending(before) }))))

func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return kit.Requests(ctx, r.Client, &v1.KubeVirtList{})
}

// Reconcile installs or removes what one KubeVirt object specifies.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
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
		return outcome.Result(ctx, r.removeFinalizer(ctx, kv))
	case scope.Conflict != "":
	case deleting:
		scope.Uninstall = Remove(ctx, scope)
	default:
		// 1. Add the finalizer before anything is installed that a deletion has to remove.
		if err := r.addFinalizer(ctx, kv); err != nil {
			return outcome.Result(ctx, err)
		}
		original = kv.DeepCopy()
		scope.InstallErr = Install(ctx, scope)
		// 2. Last, because no component needs them.
		syncCommonInstancetypes(ctx, scope)
	}
	return outcome.Result(ctx, r.finish(ctx, scope, original), scope.UntilRecheck())
}

func (r *Reconciler) scope(kv *v1.KubeVirt) *Scope {
	s := &Scope{
		Client: r.Client, APIReader: r.APIReader, Monitoring: r.Monitoring, Namespace: r.Namespace,
		KubeletRoot: r.KubeletRoot, KubeVirt: kv, Now: kit.Now(r.Clock), MetricsAuthorization: r.MetricsAuthorization,
	}
	s.Config, s.ConfigErr = clusterconfig.FromKubeVirt(kv, r.Options...)
	if _, errs := manifests.ProductLabels(&kv.Spec); len(errs) > 0 {
		s.ConfigErr = errors.Join(s.ConfigErr, errs.ToAggregate())
	}
	return s
}

// DeploymentID identifies what this build installs for a KubeVirt object. It needs no request to the cluster.
func (r *Reconciler) DeploymentID(kv *v1.KubeVirt) (string, error) {
	return DeploymentID(r.scope(kv))
}

// finish writes the status if it changed, removes the finalizer after the uninstallation, and returns the error to
// retry on.
func (r *Reconciler) finish(ctx context.Context, s *Scope, original *v1.KubeVirt) error {
	Status(s, s.Now)
	change := func(kv *v1.KubeVirt) { kv.Status = s.KubeVirt.Status }
	err := kit.WriteStatus(ctx, r.Client, &original, change, func(before *v1.KubeVirt) {
		r.warn(before, s)
		r.warnOfFailure(before, s)
	})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	switch {
	case s.Uninstall.Done:
		return r.removeFinalizer(ctx, s.KubeVirt)
	case s.Uninstall.Err != nil:
		return s.Uninstall.Err
	}
	return errors.Join(s.InstallErr, s.CommonErr)
}

// warn records an event when the condition that certificates are not renewed in time is new.
func (r *Reconciler) warn(original *v1.KubeVirt, s *Scope) {
	if len(s.Overdue) > 0 && !isDegraded(original, ReasonCertificateRotationOverdue) {
		r.Recorder.Eventf(s.KubeVirt, nil, corev1.EventTypeWarning, ReasonCertificateRotationOverdue, "Rotate", "%s",
			strings.Join(s.Overdue, "; "))
	}
}

// warnOfFailure records an event when an update stops.
func (r *Reconciler) warnOfFailure(original *v1.KubeVirt, s *Scope) {
	failure := updateFailure(s)
	// The message is not compared, because it alternates: an image is being pulled, or will be.
	if failure != "" && !isDegraded(original, ReasonDeploymentFailed) {
		r.Recorder.Eventf(s.KubeVirt, nil, corev1.EventTypeWarning, ReasonFailedUpdate, "Update", "%s", failure)
	}
}

// isDegraded reports whether the condition Degraded has a reason.
func isDegraded(kv *v1.KubeVirt, reason string) bool {
	degraded := conditions.Find(kv.Status.Conditions, v1.KubeVirtConditionDegraded)
	return degraded != nil && degraded.Reason == reason
}

func (r *Reconciler) fetch(ctx context.Context, request ctrl.Request) (*v1.KubeVirt, error) {
	kv := &v1.KubeVirt{}
	if err := r.Get(ctx, request.NamespacedName, kv); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if kv.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(kv, Finalizer) {
		return nil, nil
	}
	return kv, nil
}

// addFinalizer adds the finalizer. The optimistic lock keeps finalizers that were written meanwhile.
func (r *Reconciler) addFinalizer(ctx context.Context, kv *v1.KubeVirt) error {
	before := kv.DeepCopy()
	if !controllerutil.AddFinalizer(kv, Finalizer) {
		return nil
	}
	if err := r.Patch(ctx, kv, optimistic.MergeFrom(before)); err != nil {
		return fmt.Errorf("cannot add the finalizer: %w", err)
	}
	return nil
}

func (r *Reconciler) removeFinalizer(ctx context.Context, kv *v1.KubeVirt) error {
	latest := &v1.KubeVirt{}
	if err := r.Get(ctx, client.ObjectKeyFromObject(kv), latest); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := latest.DeepCopy()
	if !controllerutil.RemoveFinalizer(latest, Finalizer) {
		return nil
	}
	if err := r.Patch(ctx, latest, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot remove the finalizer: %w", err)
	}
	return nil
}
