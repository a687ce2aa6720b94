// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
)

// vmWorkers is how many VMs are reconciled at the same time. KubeVirt's value.
const vmWorkers = 3

// Reconciler starts and stops a VM's VMI according to its run strategy and state change requests.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events on VMs.
	Recorder events.EventRecorder
	// Config is the cluster's configuration.
	Config kit.ConfigFeed
	// DataVolumes are those of the importer, where the cluster has one.
	DataVolumes kit.DataVolumes
	// VolumeSnapshots are read to report which volumes a snapshot can include.
	VolumeSnapshots kit.VolumeSnapshots
	// Clock defaults to the system's.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes/source,verbs=create
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datasources,verbs=get
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotclasses,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=datavolumes.cdi.kubevirt.io,verbs=list;watch
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=instancetype.kubevirt.io,resources=virtualmachineinstancetypes;virtualmachineclusterinstancetypes,verbs=list;watch
// +kubebuilder:rbac:groups=instancetype.kubevirt.io,resources=virtualmachinepreferences;virtualmachineclusterpreferences,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := indexForVMs(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	controlled := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&v1.VirtualMachine{}).
		// A VMI has its VM's name. By name, not by owner: one without an owner may be adopted.
		Watches(&v1.VirtualMachineInstance{}, &handler.EnqueueRequestForObject{}).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(vmOfMigration),
			builder.WithPredicates(migrationEnded)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.vmsWithClaim),
			builder.WithPredicates(claimPhaseChanged)).
		WatchesRawSource(r.DataVolumes.Source(r.vmsWithDataVolume)).
		WatchesRawSource(kit.OnSettings(r.Config, settingsOf,
			func(ctx context.Context) []ctrl.Request { return r.find(ctx) })).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.vmsOfNamespace),
			builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(r.VolumeSnapshots.OnClass(func(ctx context.Context) []ctrl.Request { return r.find(ctx) })).
		// The provisioner of a class does not change.
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(
			func(ctx context.Context, _ client.Object) []ctrl.Request { return r.find(ctx) }),
			builder.WithPredicates(kit.CreationsAndDeletions)).
		WithOptions(kit.Fair(vmWorkers))
	for _, class := range reference.Classes {
		for _, kind := range []reference.Kind{class.Cluster, class.Namespaced} {
			controlled.Watches(kind.New(), handler.EnqueueRequestsFromMapFunc(r.vmsThatWaitFor(kind)),
				builder.WithPredicates(specChanged))
		}
	}
	return outcome.Complete(controlled, r)
}

// Reconcile reconciles one VM. See Run for the phases.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vm, config := &v1.VirtualMachine{}, r.Config.Current()
	scope := &Scope{
		Client: r.Client, APIReader: r.APIReader, Recorder: r.Recorder, Now: kit.Now(r.Clock), VM: vm,
		DataVolumes: r.DataVolumes, VolumeSnapshots: r.VolumeSnapshots,
		Settings: settingsOf(&config),
	}
	err := r.Client.Get(ctx, request.NamespacedName, vm)
	switch {
	case apierrors.IsNotFound(err):
		return outcome.Result(ctx, finalizeWithoutVM(ctx, scope, request.NamespacedName))
	case err != nil:
		return outcome.Result(ctx, fmt.Errorf("get VirtualMachine %s: %w", request, err))
	}
	if err := scope.Load(ctx); err != nil {
		return outcome.Result(ctx, err)
	}
	err = Run(ctx, scope)
	return outcome.Result(ctx, err, scope.RequeueAfter)
}

// Settings is all that a VM's reconciliation reads of the cluster's configuration. A change of them enqueues all VMs.
type Settings struct {
	// LiveUpdate reports whether changes of the template are applied to a running instance where possible. Otherwise they
	// take effect at the next start.
	LiveUpdate bool
	// HotplugVolumes reports whether volumes are plugged into running guests.
	HotplugVolumes bool
	// EphemeralVolumes reports whether volumes that were plugged into the VMI of a VM only stay plugged.
	EphemeralVolumes bool
	// CPUAllocationRatio is the number of vCPUs for one CPU of the node.
	CPUAllocationRatio int
	// ReferencePolicy is whether the VM keeps referring to its instance type and preference.
	ReferencePolicy v1.InstancetypeReferencePolicy
	// Tracking is which VMs have their changed blocks tracked.
	Tracking Tracking
	// LiveMetadata are the annotations and labels of the template that are copied to a running instance.
	LiveMetadata podspec.LiveMetadata
}

// settingsOf returns the settings of a configuration.
func settingsOf(c *clusterconfig.Config) Settings {
	return Settings{
		LiveUpdate: c.RolloutStrategy == v1.VMRolloutStrategyLiveUpdate, HotplugVolumes: c.HotplugVolumes,
		EphemeralVolumes:   c.IsEnabled(clusterconfig.GateHotplug),
		CPUAllocationRatio: c.CPUAllocationRatio, ReferencePolicy: c.InstancetypeReferencePolicy,
		LiveMetadata: c.LiveMetadata,
		Tracking:     Tracking{Enabled: c.IsEnabled(clusterconfig.GateIncrementalBackup), Selected: c.ChangedBlockTracking},
	}
}
