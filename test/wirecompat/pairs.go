// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"reflect"

	upstreambackupv1alpha1 "kubevirt.io/api/backup/v1alpha1"
	upstreamclonev1alpha1 "kubevirt.io/api/clone/v1alpha1"
	upstreamclonev1beta1 "kubevirt.io/api/clone/v1beta1"
	upstreamv1 "kubevirt.io/api/core/v1"
	upstreamexportv1 "kubevirt.io/api/export/v1"
	upstreamexportv1beta1 "kubevirt.io/api/export/v1beta1"
	upstreaminstancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	upstreammigrationsv1alpha1 "kubevirt.io/api/migrations/v1alpha1"
	upstreampoolv1alpha1 "kubevirt.io/api/pool/v1alpha1"
	upstreampoolv1beta1 "kubevirt.io/api/pool/v1beta1"
	upstreamsnapshotv1alpha1 "kubevirt.io/api/snapshot/v1alpha1"
	upstreamsnapshotv1beta1 "kubevirt.io/api/snapshot/v1beta1"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	clonev1alpha1 "github.com/vireo-project/vireo/api/clone/v1alpha1"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	exportv1beta1 "github.com/vireo-project/vireo/api/export/v1beta1"
	instancetypev1beta1 "github.com/vireo-project/vireo/api/instancetype/v1beta1"
	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1alpha1 "github.com/vireo-project/vireo/api/pool/v1alpha1"
	poolv1beta1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1alpha1 "github.com/vireo-project/vireo/api/snapshot/v1alpha1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	kubevirtv1 "github.com/vireo-project/vireo/api/v1"
)

// pair is a type of KubeVirt and Vireo's type that must have the same encoding.
type pair struct {
	// upstream and ours are zero values of the two types.
	upstream, ours any
	// crd and version are the CRD's name in config/crd/bases and its version; empty for bodies.
	crd, version string
	// recursive reports whether the type contains itself and so has no schema.
	recursive bool
}

// name returns the type's name with its package but without the module, such as core/v1.VirtualMachine.
func (p pair) name() string {
	t := reflect.TypeOf(p.upstream)
	return p.crdGroupVersion() + t.Name()
}

func (p pair) crdGroupVersion() string {
	path := reflect.TypeOf(p.upstream).PkgPath()
	return path[len("kubevirt.io/api/"):] + "."
}

// body returns a pair of types that are only the body of requests or responses.
func body(upstream, ours any) pair {
	return pair{upstream: upstream, ours: ours}
}

// recursive returns a body whose type contains itself.
func recursive(upstream, ours any) pair {
	return pair{upstream: upstream, ours: ours, recursive: true}
}

// kind returns a pair of types with a CRD.
func kind(upstream, ours any, crd, version string) pair {
	return pair{upstream: upstream, ours: ours, crd: crd, version: version}
}

// pairs contains every type that is a whole object or body. The group plugin.kubevirt.io is left out: it is KubeVirt's
// own extension mechanism, in alpha.
var pairs = []pair{
	// kubevirt.io
	kind(upstreamv1.VirtualMachine{}, kubevirtv1.VirtualMachine{}, "kubevirt.io_virtualmachines", "v1"),
	kind(upstreamv1.VirtualMachineInstance{}, kubevirtv1.VirtualMachineInstance{}, "kubevirt.io_virtualmachineinstances",
		"v1"),
	kind(upstreamv1.VirtualMachineInstanceReplicaSet{}, kubevirtv1.VirtualMachineInstanceReplicaSet{},
		"kubevirt.io_virtualmachineinstancereplicasets", "v1"),
	kind(upstreamv1.VirtualMachineInstanceMigration{}, kubevirtv1.VirtualMachineInstanceMigration{},
		"kubevirt.io_virtualmachineinstancemigrations", "v1"),
	kind(upstreamv1.VirtualMachineInstancePreset{}, kubevirtv1.VirtualMachineInstancePreset{},
		"kubevirt.io_virtualmachineinstancepresets", "v1"),
	kind(upstreamv1.KubeVirt{}, kubevirtv1.KubeVirt{}, "kubevirt.io_kubevirts", "v1"),

	// instancetype.kubevirt.io
	kind(upstreaminstancetypev1beta1.VirtualMachineInstancetype{}, instancetypev1beta1.VirtualMachineInstancetype{},
		"instancetype.kubevirt.io_virtualmachineinstancetypes", "v1beta1"),
	kind(upstreaminstancetypev1beta1.VirtualMachineClusterInstancetype{},
		instancetypev1beta1.VirtualMachineClusterInstancetype{},
		"instancetype.kubevirt.io_virtualmachineclusterinstancetypes", "v1beta1"),
	kind(upstreaminstancetypev1beta1.VirtualMachinePreference{}, instancetypev1beta1.VirtualMachinePreference{},
		"instancetype.kubevirt.io_virtualmachinepreferences", "v1beta1"),
	kind(upstreaminstancetypev1beta1.VirtualMachineClusterPreference{},
		instancetypev1beta1.VirtualMachineClusterPreference{}, "instancetype.kubevirt.io_virtualmachineclusterpreferences",
		"v1beta1"),

	// snapshot.kubevirt.io
	kind(upstreamsnapshotv1beta1.VirtualMachineSnapshot{}, snapshotv1beta1.VirtualMachineSnapshot{},
		"snapshot.kubevirt.io_virtualmachinesnapshots", "v1beta1"),
	kind(upstreamsnapshotv1beta1.VirtualMachineSnapshotContent{}, snapshotv1beta1.VirtualMachineSnapshotContent{},
		"snapshot.kubevirt.io_virtualmachinesnapshotcontents", "v1beta1"),
	kind(upstreamsnapshotv1beta1.VirtualMachineRestore{}, snapshotv1beta1.VirtualMachineRestore{},
		"snapshot.kubevirt.io_virtualmachinerestores", "v1beta1"),
	kind(upstreamsnapshotv1alpha1.VirtualMachineSnapshot{}, snapshotv1alpha1.VirtualMachineSnapshot{},
		"snapshot.kubevirt.io_virtualmachinesnapshots", "v1alpha1"),
	kind(upstreamsnapshotv1alpha1.VirtualMachineSnapshotContent{}, snapshotv1alpha1.VirtualMachineSnapshotContent{},
		"snapshot.kubevirt.io_virtualmachinesnapshotcontents", "v1alpha1"),
	kind(upstreamsnapshotv1alpha1.VirtualMachineRestore{}, snapshotv1alpha1.VirtualMachineRestore{},
		"snapshot.kubevirt.io_virtualmachinerestores", "v1alpha1"),

	// clone.kubevirt.io
	kind(upstreamclonev1beta1.VirtualMachineClone{}, clonev1beta1.VirtualMachineClone{},
		"clone.kubevirt.io_virtualmachineclones", "v1beta1"),
	kind(upstreamclonev1alpha1.VirtualMachineClone{}, clonev1alpha1.VirtualMachineClone{},
		"clone.kubevirt.io_virtualmachineclones", "v1alpha1"),

	// pool.kubevirt.io
	kind(upstreampoolv1beta1.VirtualMachinePool{}, poolv1beta1.VirtualMachinePool{},
		"pool.kubevirt.io_virtualmachinepools", "v1beta1"),
	kind(upstreampoolv1alpha1.VirtualMachinePool{}, poolv1alpha1.VirtualMachinePool{},
		"pool.kubevirt.io_virtualmachinepools", "v1alpha1"),

	// export.kubevirt.io
	kind(upstreamexportv1.VirtualMachineExport{}, exportv1.VirtualMachineExport{},
		"export.kubevirt.io_virtualmachineexports", "v1"),
	kind(upstreamexportv1beta1.VirtualMachineExport{}, exportv1beta1.VirtualMachineExport{},
		"export.kubevirt.io_virtualmachineexports", "v1beta1"),

	// migrations.kubevirt.io
	kind(upstreammigrationsv1alpha1.MigrationPolicy{}, migrationsv1alpha1.MigrationPolicy{},
		"migrations.kubevirt.io_migrationpolicies", "v1alpha1"),

	// backup.kubevirt.io
	kind(upstreambackupv1alpha1.VirtualMachineBackup{}, backupv1alpha1.VirtualMachineBackup{},
		"backup.kubevirt.io_virtualmachinebackups", "v1alpha1"),
	kind(upstreambackupv1alpha1.VirtualMachineBackupTracker{}, backupv1alpha1.VirtualMachineBackupTracker{},
		"backup.kubevirt.io_virtualmachinebackuptrackers", "v1alpha1"),

	// subresources.kubevirt.io
	body(upstreamv1.StartOptions{}, kubevirtv1.StartOptions{}),
	body(upstreamv1.StopOptions{}, kubevirtv1.StopOptions{}),
	body(upstreamv1.RestartOptions{}, kubevirtv1.RestartOptions{}),
	body(upstreamv1.PauseOptions{}, kubevirtv1.PauseOptions{}),
	body(upstreamv1.UnpauseOptions{}, kubevirtv1.UnpauseOptions{}),
	body(upstreamv1.MigrateOptions{}, kubevirtv1.MigrateOptions{}),
	body(upstreamv1.EvacuateCancelOptions{}, kubevirtv1.EvacuateCancelOptions{}),
	body(upstreamv1.FreezeUnfreezeTimeout{}, kubevirtv1.FreezeUnfreezeTimeout{}),
	body(upstreamv1.ScreenshotOptions{}, kubevirtv1.ScreenshotOptions{}),
	body(upstreamv1.VSOCKOptions{}, kubevirtv1.VSOCKOptions{}),
	body(upstreamv1.AddVolumeOptions{}, kubevirtv1.AddVolumeOptions{}),
	body(upstreamv1.RemoveVolumeOptions{}, kubevirtv1.RemoveVolumeOptions{}),
	body(upstreamv1.VirtualMachineMemoryDumpRequest{}, kubevirtv1.VirtualMachineMemoryDumpRequest{}),
	body(upstreamv1.VirtualMachineInstanceGuestAgentInfo{}, kubevirtv1.VirtualMachineInstanceGuestAgentInfo{}),
	body(upstreamv1.VirtualMachineInstanceGuestOSUserList{}, kubevirtv1.VirtualMachineInstanceGuestOSUserList{}),
	body(upstreamv1.VirtualMachineInstanceFileSystemList{}, kubevirtv1.VirtualMachineInstanceFileSystemList{}),
	body(upstreamv1.SEVPlatformInfo{}, kubevirtv1.SEVPlatformInfo{}),
	body(upstreamv1.SEVMeasurementInfo{}, kubevirtv1.SEVMeasurementInfo{}),
	body(upstreamv1.SEVSessionOptions{}, kubevirtv1.SEVSessionOptions{}),
	body(upstreamv1.SEVSecretOptions{}, kubevirtv1.SEVSecretOptions{}),
	recursive(upstreamv1.ObjectGraphNode{}, kubevirtv1.ObjectGraphNode{}),
	body(upstreamv1.ObjectGraphOptions{}, kubevirtv1.ObjectGraphOptions{}),
	body(upstreamv1.ClusterProfilerRequest{}, kubevirtv1.ClusterProfilerRequest{}),
	body(upstreamv1.ClusterProfilerResults{}, kubevirtv1.ClusterProfilerResults{}),
	body(upstreambackupv1alpha1.BackupOptions{}, backupv1alpha1.BackupOptions{}),
}
