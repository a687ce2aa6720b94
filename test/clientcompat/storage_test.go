// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clientcompat

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	backupv1alpha1 "kubevirt.io/api/backup/v1alpha1"
	clonev1alpha1 "kubevirt.io/api/clone/v1alpha1"
	clonev1beta1 "kubevirt.io/api/clone/v1beta1"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"
	exportv1beta1 "kubevirt.io/api/export/v1beta1"
	snapshotv1alpha1 "kubevirt.io/api/snapshot/v1alpha1"
	snapshotv1beta1 "kubevirt.io/api/snapshot/v1beta1"
	"kubevirt.io/client-go/kubecli"
)

// The groups of sources and targets.
const (
	vmGroup       = "kubevirt.io"
	snapshotGroup = "snapshot.kubevirt.io"
	backupGroup   = "backup.kubevirt.io"
)

func pointer[T any](value T) *T { return &value }

// reference refers to an object by its group, kind and name.
func reference(group, kind, name string) corev1.TypedLocalObjectReference {
	return corev1.TypedLocalObjectReference{APIGroup: &group, Kind: kind, Name: name}
}

// ofVM refers to the VM of a test's object. Each has its own, because only one restore of a VM may be in progress.
func ofVM(name string) corev1.TypedLocalObjectReference {
	return reference(vmGroup, "VirtualMachine", "vm-"+name)
}

func TestSnapshots(t *testing.T) {
	storageKind[*snapshotv1beta1.VirtualMachineSnapshot, *snapshotv1beta1.VirtualMachineSnapshotList]{
		resource: "virtualmachinesnapshots." + snapshotGroup,
		client: func(c kubecli.KubevirtClient) storageClient[
			*snapshotv1beta1.VirtualMachineSnapshot, *snapshotv1beta1.VirtualMachineSnapshotList,
		] {
			return c.VirtualMachineSnapshot(namespace)
		},
		object: func(name string) *snapshotv1beta1.VirtualMachineSnapshot {
			return &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: meta1(name),
				Spec: snapshotv1beta1.VirtualMachineSnapshotSpec{
					Source: ofVM(name), DeletionPolicy: pointer(snapshotv1beta1.VirtualMachineSnapshotContentRetain),
					FailureDeadline: &metav1.Duration{Duration: time.Minute},
				}}
		},
		spec:   func(of *snapshotv1beta1.VirtualMachineSnapshot) any { return &of.Spec },
		status: func(of *snapshotv1beta1.VirtualMachineSnapshot) any { return &of.Status },
		refused: []refusal[*snapshotv1beta1.VirtualMachineSnapshot]{
			{"no group", func(of *snapshotv1beta1.VirtualMachineSnapshot) { of.Spec.Source.APIGroup = nil }, unprocessable, "spec.source.apiGroup: Not found: missing apiGroup"},
			{"another group", func(of *snapshotv1beta1.VirtualMachineSnapshot) { of.Spec.Source.APIGroup = pointer("apps") }, unprocessable, "invalid apiGroup"},
			{"another kind", func(of *snapshotv1beta1.VirtualMachineSnapshot) { of.Spec.Source.Kind = "Pod" }, unprocessable, "invalid kind"},
		},
		change:    func(of *snapshotv1beta1.VirtualMachineSnapshot) { of.Spec.DeletionPolicy = nil },
		immutable: "spec in immutable after creation",
	}.test(t)
}

func TestSnapshotContents(t *testing.T) {
	storageKind[*snapshotv1beta1.VirtualMachineSnapshotContent, *snapshotv1beta1.VirtualMachineSnapshotContentList]{
		resource: "virtualmachinesnapshotcontents." + snapshotGroup,
		client: func(c kubecli.KubevirtClient) storageClient[
			*snapshotv1beta1.VirtualMachineSnapshotContent, *snapshotv1beta1.VirtualMachineSnapshotContentList,
		] {
			return c.VirtualMachineSnapshotContent(namespace)
		},
		object: func(name string) *snapshotv1beta1.VirtualMachineSnapshotContent {
			return &snapshotv1beta1.VirtualMachineSnapshotContent{ObjectMeta: meta1(name),
				Spec: snapshotv1beta1.VirtualMachineSnapshotContentSpec{
					VirtualMachineSnapshotName: &name,
					Source: snapshotv1beta1.SourceSpec{VirtualMachine: &snapshotv1beta1.VirtualMachine{
						ObjectMeta: metav1.ObjectMeta{Name: "vm", Labels: map[string]string{"kept": "yes"}},
						Spec:       newVM("vm", v1.RunStrategyHalted).Spec,
						// the schema's default, as in KubeVirt's
						Status: v1.VirtualMachineStatus{PrintableStatus: v1.VirtualMachineStatusStopped},
					}},
					VolumeBackups: []snapshotv1beta1.VolumeBackup{{
						VolumeName: "root", VolumeSnapshotName: &name, PersistentVolumeClaim: snapshotv1beta1.PersistentVolumeClaim{
							ObjectMeta: metav1.ObjectMeta{Name: "root", Annotations: map[string]string{"kept": "yes"}},
							Spec: corev1.PersistentVolumeClaimSpec{
								AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &name},
						},
					}},
				}}
		},
		spec:   func(of *snapshotv1beta1.VirtualMachineSnapshotContent) any { return &of.Spec },
		status: func(of *snapshotv1beta1.VirtualMachineSnapshotContent) any { return &of.Status },
	}.test(t)
}

func TestRestores(t *testing.T) {
	restores := storageKind[*snapshotv1beta1.VirtualMachineRestore, *snapshotv1beta1.VirtualMachineRestoreList]{
		resource: "virtualmachinerestores." + snapshotGroup,
		client: func(c kubecli.KubevirtClient) storageClient[
			*snapshotv1beta1.VirtualMachineRestore, *snapshotv1beta1.VirtualMachineRestoreList,
		] {
			return c.VirtualMachineRestore(namespace)
		},
		object: func(name string) *snapshotv1beta1.VirtualMachineRestore {
			return &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: meta1(name),
				Spec: snapshotv1beta1.VirtualMachineRestoreSpec{
					Target: ofVM(name), VirtualMachineSnapshotName: "none", Patches: []string{`{"op":"remove","path":"/spec/x"}`},
					TargetReadinessPolicy: pointer(snapshotv1beta1.VirtualMachineRestoreStopTarget),
					VolumeRestorePolicy:   pointer(snapshotv1beta1.VolumeRestorePolicyPrefixTargetName),
					VolumeOwnershipPolicy: pointer(snapshotv1beta1.VolumeOwnershipPolicyNone),
					VolumeRestoreOverrides: []snapshotv1beta1.VolumeRestoreOverride{{
						VolumeName: "root", RestoreName: "other", Labels: map[string]string{"a": "b"},
						Annotations: map[string]string{"c": "d"},
					}},
				}}
		},
		spec:   func(of *snapshotv1beta1.VirtualMachineRestore) any { return &of.Spec },
		status: func(of *snapshotv1beta1.VirtualMachineRestore) any { return &of.Status },
		refused: []refusal[*snapshotv1beta1.VirtualMachineRestore]{
			{"no group", func(of *snapshotv1beta1.VirtualMachineRestore) { of.Spec.Target.APIGroup = nil }, unprocessable, "missing apiGroup"},
			{"another kind", func(of *snapshotv1beta1.VirtualMachineRestore) { of.Spec.Target.Kind = "Pod" }, unprocessable, "invalid kind"},
			{"a patch of the status", func(of *snapshotv1beta1.VirtualMachineRestore) {
				of.Spec.Patches = []string{`{"op":"remove","path":"/status/x"}`}
			}, unprocessable, "patching is valid only for elements under /spec/ only"},
			{"a policy", func(of *snapshotv1beta1.VirtualMachineRestore) {
				of.Spec.VolumeRestorePolicy = pointer(snapshotv1beta1.VolumeRestorePolicy("Somehow"))
			}, unprocessable, `volume restore policy "Somehow" doesn't exist`},
			{"an override of nothing", func(of *snapshotv1beta1.VirtualMachineRestore) {
				of.Spec.VolumeRestoreOverrides = []snapshotv1beta1.VolumeRestoreOverride{{VolumeName: "root"}}
			}, unprocessable, "must provide at least one overriden field"}, //nolint:misspell // KubeVirt's spelling
		},
		// Otherwise the webhook refuses it, because another restore of the VM is in progress.
		again:     func(of *snapshotv1beta1.VirtualMachineRestore) { of.Spec.Target = ofVM("again") },
		change:    func(of *snapshotv1beta1.VirtualMachineRestore) { of.Spec.VirtualMachineSnapshotName = "other" },
		immutable: "spec in immutable after creation",
	}
	restores.test(t)
	t.Run("a second one of a VM", func(t *testing.T) {
		ctx := t.Context()
		client, second := restores.client(kubevirt), restores.object("second")
		second.Spec.Target = ofVM("first")
		if _, err := client.Create(ctx, restores.object("first"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The webhook reads a cache. A dry run creates nothing.
		expectEventually(t, func() error {
			_, err := client.Create(ctx, second, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}, unprocessable, `VirtualMachineRestore "first" in progress`)
	})
}

func TestClones(t *testing.T) {
	clones := storageKind[*clonev1beta1.VirtualMachineClone, *clonev1beta1.VirtualMachineCloneList]{
		resource: "virtualmachineclones.clone.kubevirt.io",
		client: func(c kubecli.KubevirtClient) storageClient[
			*clonev1beta1.VirtualMachineClone, *clonev1beta1.VirtualMachineCloneList,
		] {
			return c.VirtualMachineClone(namespace)
		},
		object: func(name string) *clonev1beta1.VirtualMachineClone {
			return &clonev1beta1.VirtualMachineClone{ObjectMeta: meta1(name), Spec: clonev1beta1.VirtualMachineCloneSpec{
				Source: pointer(reference(snapshotGroup, "VirtualMachineSnapshot", "snap")), Target: pointer(ofVM(name)),
				AnnotationFilters: []string{"!secret/*", "*"}, LabelFilters: []string{"*"},
				Template: clonev1beta1.VirtualMachineCloneTemplateFilters{
					AnnotationFilters: []string{"a"}, LabelFilters: []string{"b"}},
				NewMacAddresses: map[string]string{"default": "02:00:00:00:00:01"}, NewSMBiosSerial: pointer("serial"),
				Patches: []string{`{"op":"remove","path":"/spec/x"}`}, VolumeNamePolicy: pointer(clonev1beta1.VolumeNamePolicyPrefixTargetName),
			}}
		},
		spec:   func(of *clonev1beta1.VirtualMachineClone) any { return &of.Spec },
		status: func(of *clonev1beta1.VirtualMachineClone) any { return &of.Status },
		refused: []refusal[*clonev1beta1.VirtualMachineClone]{
			{"an address", func(of *clonev1beta1.VirtualMachineClone) { of.Spec.NewMacAddresses["default"] = "02" }, unprocessable, "interface default has malformed MAC address (02)."},
			{"a filter", func(of *clonev1beta1.VirtualMachineClone) { of.Spec.LabelFilters = []string{"a*b"} }, unprocessable, "WildcardChar can be only at the end of the filter"},
			{"another kind", func(of *clonev1beta1.VirtualMachineClone) { of.Spec.Source.Kind = "Pod" }, unprocessable, "Source kind is not supported"},
			{"itself", func(of *clonev1beta1.VirtualMachineClone) {
				of.Spec.Source = pointer(ofVM("x"))
				of.Spec.Target = of.Spec.Source
			}, unprocessable, "Target name cannot be equal to source name when both are VirtualMachines"},
		},
	}
	clones.test(t)
	t.Run("to a VM without a name", func(t *testing.T) {
		of := clones.object("unnamed")
		of.Spec.Target = nil
		created, err := clones.client(kubevirt).Create(t.Context(), of, metav1.CreateOptions{})
		if err != nil || created.Spec.Target == nil || !strings.HasPrefix(created.Spec.Target.Name, "clone-snap-") ||
			created.Spec.Target.Kind != "VirtualMachine" {
			t.Errorf("got %+v, %v", created, err)
		}
	})
}

func makeExport(name string) *exportv1.VirtualMachineExport {
	return &exportv1.VirtualMachineExport{ObjectMeta: meta1(name), Spec: exportv1.VirtualMachineExportSpec{
		Source: reference("", "PersistentVolumeClaim", "data"), TokenSecretRef: pointer("token"), TTLDuration: &metav1.Duration{Duration: time.Hour},
	}}
}

func TestExports(t *testing.T) {
	storageKind[*exportv1.VirtualMachineExport, *exportv1.VirtualMachineExportList]{
		resource: "virtualmachineexports.export.kubevirt.io",
		client: func(c kubecli.KubevirtClient) storageClient[
			*exportv1.VirtualMachineExport, *exportv1.VirtualMachineExportList,
		] {
			return c.VirtualMachineExport(namespace)
		},
		object: makeExport,
		spec:   func(of *exportv1.VirtualMachineExport) any { return &of.Spec },
		status: func(of *exportv1.VirtualMachineExport) any { return &of.Status },
		refused: []refusal[*exportv1.VirtualMachineExport]{
			{"no name", func(of *exportv1.VirtualMachineExport) { of.Spec.Source.Name = "" }, unprocessable, "PVC name must not be empty"},
			{"another group", func(of *exportv1.VirtualMachineExport) { of.Spec.Source.APIGroup = pointer("apps") }, unprocessable, "PVC API group must be missing or blank"},
			{"a VM of no group", func(of *exportv1.VirtualMachineExport) { of.Spec.Source.Kind = "VirtualMachine" }, unprocessable, "VM API group must be kubevirt.io"},
			{"another kind", func(of *exportv1.VirtualMachineExport) { of.Spec.Source.Kind = "Pod" }, unprocessable, "invalid kind"},
		},
		change:    func(of *exportv1.VirtualMachineExport) { of.Spec.TTLDuration = nil },
		immutable: "spec in immutable after creation",
	}.test(t)
}

func TestExportsV1beta1(t *testing.T) {
	exports := storageKind[*exportv1beta1.VirtualMachineExport, *exportv1beta1.VirtualMachineExportList]{
		resource: "virtualmachineexports.export.kubevirt.io",
		client: func(c kubecli.KubevirtClient) storageClient[
			*exportv1beta1.VirtualMachineExport, *exportv1beta1.VirtualMachineExportList,
		] {
			return c.GeneratedKubeVirtClient().ExportV1beta1().VirtualMachineExports(namespace)
		},
		object: func(name string) *exportv1beta1.VirtualMachineExport {
			return &exportv1beta1.VirtualMachineExport{ObjectMeta: meta1(name), Spec: exportv1beta1.VirtualMachineExportSpec{
				Source: reference(snapshotGroup, "VirtualMachineSnapshot", "snap"), TokenSecretRef: pointer("token"), TTLDuration: &metav1.Duration{Duration: time.Hour},
			}}
		},
		spec:   func(of *exportv1beta1.VirtualMachineExport) any { return &of.Spec },
		status: func(of *exportv1beta1.VirtualMachineExport) any { return &of.Status },
		refused: []refusal[*exportv1beta1.VirtualMachineExport]{
			{"another group", func(of *exportv1beta1.VirtualMachineExport) { of.Spec.Source.APIGroup = pointer("apps") }, unprocessable, "VMSnapshot API group must be " + snapshotGroup},
		},
		change:    func(of *exportv1beta1.VirtualMachineExport) { of.Spec.TTLDuration = nil },
		immutable: "spec in immutable after creation",
	}
	exports.test(t)
	older, err := exports.client(kubevirt).Create(t.Context(), exports.object("older"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newer, err := kubevirt.VirtualMachineExport(namespace).Get(t.Context(), "older", metav1.GetOptions{})
	if err != nil || newer.UID != older.UID {
		t.Fatalf("got %+v, %v", newer, err)
	}
	expectSameJSON(t, "v1 of what was created as v1beta1", newer.Spec, older.Spec)
}

func TestBackups(t *testing.T) {
	storageKind[*backupv1alpha1.VirtualMachineBackup, *backupv1alpha1.VirtualMachineBackupList]{
		resource: "virtualmachinebackups." + backupGroup,
		client: func(c kubecli.KubevirtClient) storageClient[
			*backupv1alpha1.VirtualMachineBackup, *backupv1alpha1.VirtualMachineBackupList,
		] {
			return c.VirtualMachineBackup(namespace)
		},
		object: func(name string) *backupv1alpha1.VirtualMachineBackup {
			return &backupv1alpha1.VirtualMachineBackup{ObjectMeta: meta1(name), Spec: backupv1alpha1.VirtualMachineBackupSpec{
				Source: reference(backupGroup, "VirtualMachineBackupTracker", "nightly"), Mode: pointer(backupv1alpha1.PushMode), PvcName: pointer("backups"),
				SkipQuiesce: true, ForceFullBackup: true,
			}}
		},
		spec:   func(of *backupv1alpha1.VirtualMachineBackup) any { return &of.Spec },
		status: func(of *backupv1alpha1.VirtualMachineBackup) any { return &of.Status },
		refused: []refusal[*backupv1alpha1.VirtualMachineBackup]{
			{"no claim", func(of *backupv1alpha1.VirtualMachineBackup) { of.Spec.PvcName = nil }, unprocessable, "pvcName is required"},
			{"a pull without token", func(of *backupv1alpha1.VirtualMachineBackup) {
				of.Spec.Mode = pointer(backupv1alpha1.PullMode)
			}, unprocessable, "tokenSecretRef is required when mode is Pull"},
			{"no group", func(of *backupv1alpha1.VirtualMachineBackup) { of.Spec.Source.APIGroup = nil }, unprocessable, "apiGroup is required"},
			{"a tracker of VMs' group", func(of *backupv1alpha1.VirtualMachineBackup) {
				of.Spec.Source.APIGroup = pointer(vmGroup)
			}, unprocessable, "kind must be VirtualMachine for kubevirt.io or VirtualMachineBackupTracker"},
		},
		change:    func(of *backupv1alpha1.VirtualMachineBackup) { of.Spec.ForceFullBackup = false },
		immutable: "spec is immutable after creation",
	}.test(t)
}

func TestBackupTrackers(t *testing.T) {
	storageKind[*backupv1alpha1.VirtualMachineBackupTracker, *backupv1alpha1.VirtualMachineBackupTrackerList]{
		resource: "virtualmachinebackuptrackers." + backupGroup,
		client: func(c kubecli.KubevirtClient) storageClient[
			*backupv1alpha1.VirtualMachineBackupTracker, *backupv1alpha1.VirtualMachineBackupTrackerList,
		] {
			return c.VirtualMachineBackupTracker(namespace)
		},
		object: func(name string) *backupv1alpha1.VirtualMachineBackupTracker {
			return &backupv1alpha1.VirtualMachineBackupTracker{
				ObjectMeta: meta1(name), Spec: backupv1alpha1.VirtualMachineBackupTrackerSpec{Source: ofVM(name)},
			}
		},
		spec:   func(of *backupv1alpha1.VirtualMachineBackupTracker) any { return &of.Spec },
		status: func(of *backupv1alpha1.VirtualMachineBackupTracker) any { return &of.Status },
		refused: []refusal[*backupv1alpha1.VirtualMachineBackupTracker]{
			{"no group", func(of *backupv1alpha1.VirtualMachineBackupTracker) { of.Spec.Source.APIGroup = nil }, unprocessable, "apiGroup must be kubevirt.io"},
			{"another kind", func(of *backupv1alpha1.VirtualMachineBackupTracker) { of.Spec.Source.Kind = "Pod" }, unprocessable, "kind must be VirtualMachine"},
			{"no name", func(of *backupv1alpha1.VirtualMachineBackupTracker) { of.Spec.Source.Name = "" }, unprocessable, "name is required"},
		},
		change:    func(of *backupv1alpha1.VirtualMachineBackupTracker) { of.Spec.Source.Name = "other" },
		immutable: "spec is immutable after creation",
	}.test(t)
}

// TestOldVersions drives the versions that older tools use. The API server asks the webhooks about their objects, too.
func TestOldVersions(t *testing.T) {
	client := kubevirt.GeneratedKubeVirtClient()
	t.Run("VirtualMachineSnapshot", func(t *testing.T) {
		testKind(t, client.SnapshotV1alpha1().VirtualMachineSnapshots(namespace), &snapshotv1alpha1.VirtualMachineSnapshot{
			ObjectMeta: meta1("old"), Spec: snapshotv1alpha1.VirtualMachineSnapshotSpec{Source: ofVM("old")},
		})
		_, err := client.SnapshotV1alpha1().VirtualMachineSnapshots(namespace).Create(t.Context(),
			&snapshotv1alpha1.VirtualMachineSnapshot{
				ObjectMeta: meta1("old"), Spec: snapshotv1alpha1.VirtualMachineSnapshotSpec{Source: reference(vmGroup, "Pod", "old")},
			}, metav1.CreateOptions{})
		expectCode(t, "another kind", err, unprocessable, "invalid kind")
	})
	t.Run("VirtualMachineRestore", func(t *testing.T) {
		testKind(t, client.SnapshotV1alpha1().VirtualMachineRestores(namespace), &snapshotv1alpha1.VirtualMachineRestore{
			ObjectMeta: meta1("old"), Spec: snapshotv1alpha1.VirtualMachineRestoreSpec{Target: ofVM("old"), VirtualMachineSnapshotName: "none"},
		})
	})
	t.Run("VirtualMachineSnapshotContent", func(t *testing.T) {
		testKind(t, client.SnapshotV1alpha1().VirtualMachineSnapshotContents(namespace),
			&snapshotv1alpha1.VirtualMachineSnapshotContent{ObjectMeta: meta1("old")})
	})
	t.Run("VirtualMachineClone", func(t *testing.T) {
		testKind(t, client.CloneV1alpha1().VirtualMachineClones(namespace), &clonev1alpha1.VirtualMachineClone{
			ObjectMeta: meta1("old"), Spec: clonev1alpha1.VirtualMachineCloneSpec{Source: pointer(ofVM("old")), Target: pointer(ofVM("copy"))},
		})
	})
}

// unprocessable is the code of an object that is not valid.
const unprocessable = http.StatusUnprocessableEntity
