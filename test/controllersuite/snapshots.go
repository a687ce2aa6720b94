// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/test/builder"
)

// What DescribeSnapshot returns of a snapshot that has been taken, and of one that is ready too.
const (
	SnapshotTaken = "Succeeded; Progressing=False Operation complete; Ready=False Not ready"
	SnapshotReady = "Succeeded; Progressing=False Operation complete; Ready=True Ready"
)

// NewSnapshotStorage returns a new namespace and creates storage of the same name, whose volumes can be snapshotted.
func NewSnapshotStorage() string {
	GinkgoHelper()
	InstallVolumeSnapshots()
	name := NewNamespace()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: name + ".csi.example"}
	ExpectCreated(class, &csi.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: class.Provisioner})
	DeferCleanup(func() { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, class))).To(Succeed()) })
	return name
}

// VMWithSnapshots creates a stopped VM with a disk in a namespace of NewSnapshotStorage.
func VMWithSnapshots(ns string, change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	GinkgoHelper()
	b := builder.MakeVM("vm").Namespace(ns).Strategy(v1.RunStrategyHalted).
		Template(builder.MakeVMI("vm").PVC("root", "root"))
	for _, c := range change {
		b = b.With(c)
	}
	claim := builder.MakePVC("root").Namespace(ns).Bound("1Gi").Obj()
	claim.Spec.StorageClassName = ptr.To(ns)
	vm := b.Obj()
	ExpectCreated(vm, claim)
	return ExpectExists(vm)
}

// RequestSnapshot creates a snapshot of the VM in a namespace.
func RequestSnapshot(
	ns, name string, changes ...func(*snapshotv1beta1.VirtualMachineSnapshot),
) *snapshotv1beta1.VirtualMachineSnapshot {
	GinkgoHelper()
	of := &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
	for _, change := range changes {
		change(of)
	}
	ExpectCreated(of)
	return ExpectExists(of)
}

// DescribeSnapshot returns phase, reasons of the conditions and indications of a snapshot, which must exist.
func DescribeSnapshot(of *snapshotv1beta1.VirtualMachineSnapshot) string {
	GinkgoHelper()
	ExpectExists(of)
	if of.Status == nil {
		return "no status"
	}
	text := string(of.Status.Phase)
	for _, kind := range []snapshotv1beta1.ConditionType{
		snapshotv1beta1.ConditionProgressing, snapshotv1beta1.ConditionReady, snapshotv1beta1.ConditionFailure,
	} {
		if c := conditions.Find(of.Status.Conditions, kind); c != nil {
			text += "; " + string(kind) + "=" + string(c.Status) + " " + c.Reason
		}
	}
	for _, indication := range of.Status.Indications {
		text += "; " + string(indication)
	}
	return text
}

// ContentOf returns the content of a snapshot, by its name.
func ContentOf(of *snapshotv1beta1.VirtualMachineSnapshot) *snapshotv1beta1.VirtualMachineSnapshotContent {
	return &snapshotv1beta1.VirtualMachineSnapshotContent{ObjectMeta: metav1.ObjectMeta{
		Namespace: of.Namespace, Name: "vmsnapshot-content-" + string(of.UID),
	}}
}

// VolumeSnapshotOf returns the VolumeSnapshot of a volume, by its name.
func VolumeSnapshotOf(of *snapshotv1beta1.VirtualMachineSnapshot, volume string) *csi.VolumeSnapshot {
	return &csi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{
		Namespace: of.Namespace, Name: "vmsnapshot-" + string(of.UID) + "-volume-" + volume,
	}}
}

// ReportSnapshot writes the status of the VolumeSnapshot of a volume, which was taken at a time.
func ReportSnapshot(of *snapshotv1beta1.VirtualMachineSnapshot, volume string, ready bool, at time.Time) {
	GinkgoHelper()
	taken := ExpectExists(VolumeSnapshotOf(of, volume))
	taken.Status = &csi.VolumeSnapshotStatus{CreationTime: ptr.To(metav1.NewTime(at).Rfc3339Copy()), ReadyToUse: &ready}
	Expect(K8sClient.Status().Update(ctx, taken)).To(Succeed())
}

// IsLockedForSnapshot reports whether the VM is locked for any snapshot, by both of its marks, or for none, by neither.
func IsLockedForSnapshot(vm *v1.VirtualMachine) bool {
	GinkgoHelper()
	ExpectExists(vm)
	finalizer := slices.Contains(vm.Finalizers, "snapshot.kubevirt.io/snapshot-source-protection")
	Expect(vm.Status.SnapshotInProgress != nil).To(Equal(finalizer), "half a lock")
	return finalizer
}
