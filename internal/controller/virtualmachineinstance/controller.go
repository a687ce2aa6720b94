// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
)

// vmiWorkers is how many VMIs are reconciled concurrently. KubeVirt's value.
const vmiWorkers = 10

// minRecreation and maxRecreation are the first and the longest time from the creation of an attachment Pod until it is
// created again.
const minRecreation, maxRecreation = time.Second, 2 * time.Minute

// Reconciler reconciles VMIs.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// AgentRecorder returns a recorder of events whose source is the agent of a node.
	AgentRecorder func(node string) events.EventRecorder
	// Config is the cluster's configuration.
	Config kit.ConfigFeed
	// DataVolumes reads and watches DataVolumes if the cluster has an importer.
	DataVolumes kit.DataVolumes
	// Namespace is the install namespace.
	Namespace string
	// Clock defaults to the real clock.
	Clock clock.PassiveClock

	// syncs counts the reconciliations.
	syncs metrics.Syncs
	// endings has when VMIs ended.
	endings endings
	// recreations delays the creation of attachment Pods that are deleted again and again.
	recreations     *flowcontrol.Backoff
	recreationsOnce sync.Once
}

// attachmentRecreations returns recreations.
func (r *Reconciler) attachmentRecreations() *flowcontrol.Backoff {
	r.recreationsOnce.Do(func() { r.recreations = flowcontrol.NewBackOff(minRecreation, maxRecreation) })
	return r.recreations
}

// Metrics returns the metrics of the reconciler.
func (r *Reconciler) Metrics() prometheus.Collector { return &r.syncs }

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups=core,resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=storageprofiles,verbs=get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=cdiconfigs,resourceNames=config,verbs=get
// +kubebuilder:rbac:groups=core,resources=events,verbs=list;watch
// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=core,resources=resourcequotas,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=limitranges,verbs=list
// +kubebuilder:rbac:groups=core,resources=persistentvolumes,verbs=get

// SetupWithManager adds the reconciler to a manager. watches.go has the map functions and predicates.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := indexForVMIs(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	r.syncs.Exists = func(ctx context.Context, key types.NamespacedName) bool {
		return !apierrors.IsNotFound(r.Client.Get(ctx, key, &v1.VirtualMachineInstance{}))
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineinstance").
		For(&v1.VirtualMachineInstance{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.userOfAttachment)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.UsersOfClaim)).
		Watches(&corev1.ResourceQuota{}, handler.EnqueueRequestsFromMapFunc(r.UnderQuota),
			builder.WithPredicates(QuotaChanges)).
		WatchesMetadata(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.guestsOfNode),
			builder.WithPredicates(agentChanges)).
		Watches(&corev1.Event{}, handler.EnqueueRequestsFromMapFunc(r.ownerOfPod), builder.WithPredicates(startFailure)).
		WatchesRawSource(kit.OnConfig(r.Config, 0, r.unassigned)).
		WatchesRawSource(r.DataVolumes.Source(r.usersOfDataVolume)).
		WithOptions(kit.Fair(vmiWorkers)), r.syncs.Wrap(r))
}

// Reconcile reconciles one VMI. The phases and their order are in scope.run.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, request.NamespacedName, vmi); err != nil {
		if apierrors.IsNotFound(err) {
			r.endings.forget(request.NamespacedName)
		}
		return outcome.Result(ctx, client.IgnoreNotFound(err))
	}
	config := r.Config.Current()
	s := &scope{
		inputs: inputs{
			client: r.Client, apiReader: r.APIReader, recorder: r.Recorder, agentRecorder: r.AgentRecorder,
			importer: r.DataVolumes,
			config:   config, namespace: r.Namespace, clock: r.Clock, endings: &r.endings,
			recreations: r.attachmentRecreations(),
		},
		observed: observed{
			now: kit.Now(r.Clock), vmi: vmi, podConfig: config.Pods(), migratesWorkloads: config.MigratesWorkloads,
		},
	}
	if err := s.load(ctx); err != nil {
		return ctrl.Result{}, err
	}
	err := s.run(ctx)
	return outcome.Result(ctx, err, s.requeueAfter)
}
