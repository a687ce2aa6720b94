// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachineexport serves the volumes of VirtualMachineExports: it creates the Service, the Pod and the
// Secrets of each, writes its addresses into its status, and deletes it when it has expired. Package
// internal/decide/export decides; this package reads what the decision depends on, and applies it.
package virtualmachineexport

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/outcome"
)

// workers is how many exports are reconciled at the same time. KubeVirt's value.
const workers = 3

// Reconciler reconciles VirtualMachineExports.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Pods are the Pods of exporters.
	Pods Pods
	// Recorder records events on exports.
	Recorder events.EventRecorder
	// DataVolumes are those of the importer, where the cluster has one.
	DataVolumes kit.DataVolumes
	// VolumeSnapshots reads VolumeSnapshots from a cache, where the cluster has them.
	VolumeSnapshots volumesnapshot.Reader
	// Config is the cluster's configuration.
	Config kit.ConfigFeed
	// Namespace is the install namespace.
	Namespace string
	// Clock gives the time; nil means the system's clock.
	Clock clock.PassiveClock

	// externals caches the external address of virt-exportproxy.
	externals externals
	// users are the recent scans for other Pods that use claims.
	users claimusers.Recent
}

// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports,verbs=list;watch;delete
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports/status,verbs=patch
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports/finalizers,verbs=update
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups=core,resources=services,verbs=get;create
// +kubebuilder:rbac:groups=core,resources=secrets,verbs=create
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=list;watch;create
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines;virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots;virtualmachinesnapshotcontents,verbs=get;list;watch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,namespace=kubevirt,resources=ingresses,verbs=list
// +kubebuilder:rbac:groups=route.openshift.io,namespace=kubevirt,resources=routes,verbs=list
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=secrets,verbs=list;watch
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=configmaps,resourceNames=kube-root-ca.crt,verbs=get
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := kit.AddIndexes(mgr.GetFieldIndexer(), sourceIndex); err != nil {
		return err
	}
	exportsOfClaim, exportsOfLauncher := handler.EnqueueRequestsFromMapFunc(r.exportsOfClaim),
		handler.EnqueueRequestsFromMapFunc(r.exportsOfLauncher)
	exportsOfSource := func(kind string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(r.exportsOfSource(kind))
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineexport").
		For(&exportv1.VirtualMachineExport{}, builder.WithPredicates(exportChanges)).
		Watches(&v1.VirtualMachine{}, exportsOfSource(kindVM)).
		Watches(&v1.VirtualMachineInstance{}, exportsOfSource(kindVM), builder.WithPredicates(startsOrEnds)).
		Watches(&corev1.PersistentVolumeClaim{}, exportsOfClaim, builder.WithPredicates(claimChanges)).
		Watches(&corev1.Pod{}, exportsOfLauncher, builder.WithPredicates(startsOrEnds)).
		Watches(&v1beta1.VirtualMachineSnapshot{}, exportsOfSource(kindSnapshot)).
		Watches(&v1beta1.VirtualMachineSnapshotContent{}, handler.EnqueueRequestsFromMapFunc(r.exportsOfContent)).
		Watches(&v1alpha1.VirtualMachineBackup{}, exportsOfSource(kindBackup)).
		WatchesRawSource(r.DataVolumes.Source(r.exportsOfDataVolume)).
		WatchesRawSource(r.Pods.Source(exportOfPod)).
		WatchesRawSource(kit.OnSettings(r.Config, settingsOf, func(ctx context.Context) []ctrl.Request {
			return kit.Requests(ctx, r.Client, &exportv1.VirtualMachineExportList{}, client.UnsafeDisableDeepCopy)
		})).
		WithOptions(kit.Fair(workers)), r)
}

// Reconcile reconciles one export. See run for the order.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &scope{Reconciler: r, now: kit.Now(r.Clock)}
	err := kit.Run(ctx, r.Client, request.NamespacedName, &s.export, s.run)
	return outcome.Result(ctx, err, s.requeueAfter)
}
