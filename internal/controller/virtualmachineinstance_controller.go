// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
)

// vmiWorkers is how many VMIs are reconciled at the same time. KubeVirt's value.
const vmiWorkers = 10

// ConfigSource gives the cluster's configuration as it is now. clusterconfig.Store is one.
type ConfigSource interface {
	Current() clusterconfig.Config
}

// ConfigFeed also tells when the configuration changes. clusterconfig.Store is one.
type ConfigFeed interface {
	ConfigSource
	// Subscribe calls f now and after each change, one call at a time.
	Subscribe(f func(clusterconfig.Config))
}

// VirtualMachineInstanceReconciler leads VMIs to their launcher Pods and ends them with their Pods.
type VirtualMachineInstanceReconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Recorder takes events.
	Recorder events.EventRecorder
	// AgentRecorder takes those that name the agent of a node as their source.
	AgentRecorder func(node string) events.EventRecorder
	// Config is the cluster's configuration.
	Config ConfigFeed
	// DataVolumes are those of the importer, where the cluster has one.
	DataVolumes DataVolumes
	// Namespace is the install namespace, in which the KubeVirt object belongs.
	Namespace string
	// Clock is the time; nil means the machine's.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=storageprofiles,verbs=get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=cdiconfigs,resourceNames=config,verbs=get
// +kubebuilder:rbac:groups=core,resources=events,verbs=list;watch
// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=core,resources=resourcequotas,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=namespaces,verbs=get

// SetupWithManager adds the reconciler to a manager. What wakes it is in virtualmachineinstance_watches.go.
func (r *VirtualMachineInstanceReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := indexForVMIs(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineinstance").
		For(&v1.VirtualMachineInstance{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.usersOfClaim)).
		Watches(&corev1.ResourceQuota{}, handler.EnqueueRequestsFromMapFunc(r.underQuota), builder.WithPredicates(demands)).
		WatchesMetadata(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.guestsOfNode), builder.WithPredicates(agentChanges)).
		Watches(&corev1.Event{}, handler.EnqueueRequestsFromMapFunc(r.ownerOfPod), builder.WithPredicates(startFailure)).
		WatchesRawSource(configSource(r.Config, 0, r.placeless)).
		WatchesRawSource(r.DataVolumes.Source(r.usersOfDataVolume)).
		WithOptions(controller.Options{MaxConcurrentReconciles: vmiWorkers}).
		Complete(r)
}

// Reconcile reconciles one VMI. The phases and their order are in virtualmachineinstance.Run.
func (r *VirtualMachineInstanceReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, request.NamespacedName, vmi); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	config := r.Config.Current()
	scope := &virtualmachineinstance.Scope{
		Client: r.Client, Live: r.Live, Recorder: r.Recorder, AgentRecorder: r.AgentRecorder, Now: now(r.Clock),
		VMI: vmi, DataVolumes: r.DataVolumes, Config: config.Pods(), KubeVirt: config.KubeVirt, Namespace: r.Namespace,
		AutoCPULimit:      config.AutoCPULimitNamespaces,
		ReadNetworks:      !config.IsEnabled(clusterconfig.GateExternalNetResources),
		StateStorageClass: config.VMStateStorageClass,
	}
	if err := scope.Load(ctx); err != nil {
		return ctrl.Result{}, err
	}
	if err := virtualmachineinstance.Run(ctx, scope); err != nil {
		return result(err, 0)
	}
	return result(nil, scope.RequeueAfter)
}
