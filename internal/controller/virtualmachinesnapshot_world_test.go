// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/virtualmachinesnapshot"
	"github.com/vireo-project/vireo/internal/controller/virtualmachinesnapshotcontent"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Writes of a snapshot's reconciliation.
const (
	patchSnapshot       = "patch VirtualMachineSnapshot"
	patchSnapshotStatus = "patch VirtualMachineSnapshot/status"
	createContent       = "create VirtualMachineSnapshotContent"
	patchContent        = "patch VirtualMachineSnapshotContent"
	patchContentStatus  = "patch VirtualMachineSnapshotContent/status"
	deleteContent       = "delete VirtualMachineSnapshotContent"
	createVolumeSnap    = "create VolumeSnapshot"
	patchVMStatus       = "patch VirtualMachine/status"
	patchVMIStatus      = "patch VirtualMachineInstance/status"
)

type (
	vmSnapshot        = snapshotv1beta1.VirtualMachineSnapshot
	vmSnapshotContent = snapshotv1beta1.VirtualMachineSnapshotContent
)

// snapshots are the reconcilers of snapshots and contents on the suite's API server, with a clock that the spec sets.
type snapshots struct {
	*virtualmachinesnapshot.Reconciler
	contents *virtualmachinesnapshotcontent.Reconciler
	writes   *Writes
	events   *RecordedEvents
	clock    *clocktesting.FakePassiveClock
	ns       string
}

func newSnapshots() *snapshots {
	GinkgoHelper()
	w := &snapshots{writes: NewWrites(), events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: newSnapshotStorage()}
	w.Reconciler = &virtualmachinesnapshot.Reconciler{
		Client: w.writes, APIReader: AsController, Recorder: w.events, Clock: w.clock,
		VolumeSnapshots: VolumeSnapshots{}, DataVolumes: DataVolumes{},
	}
	w.contents = &virtualmachinesnapshotcontent.Reconciler{
		Client: w.writes, APIReader: AsController, Recorder: w.events, Clock: w.clock, VolumeSnapshots: VolumeSnapshots{},
	}
	return w
}

// newSnapshotStorage returns a new namespace and creates storage of the same name, whose volumes can be snapshotted.
func newSnapshotStorage() string {
	GinkgoHelper()
	InstallVolumeSnapshots()
	name := NewNamespace()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: name + ".csi.example"}
	ExpectCreated(class, &csi.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: class.Provisioner})
	DeferCleanup(func() { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, class))).To(Succeed()) })
	return name
}

// vm creates a stopped VM with a disk.
func (w *snapshots) vm(change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	GinkgoHelper()
	return vmWithSnapshots(w.ns, change...)
}

// vmWithSnapshots creates a stopped VM with a disk in a namespace of newSnapshotStorage.
func vmWithSnapshots(ns string, change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	GinkgoHelper()
	b := builder.MakeVM("vm").Namespace(ns).Strategy(v1.RunStrategyHalted).Template(builder.MakeVMI("vm").PVC("root", "root"))
	for _, c := range change {
		b = b.With(c)
	}
	claim := builder.MakePVC("root").Namespace(ns).Bound("1Gi").Obj()
	claim.Spec.StorageClassName = ptr.To(ns)
	vm := b.Obj()
	ExpectCreated(vm, claim)
	return ExpectExists(vm)
}

// guest creates the VMI of a VM, whose guest runs.
func (w *snapshots) guest(vm *v1.VirtualMachine, changes ...func(*v1.VirtualMachineInstanceStatus)) *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := builder.MakeVMI(vm.Name).Namespace(w.ns).OwnedBy(vm).Obj()
	ExpectCreated(vmi)
	SetVMIStatus(vmi, v1.Running, changes...)
	return vmi
}

// countPodLists counts the lists of Pods that are requested from the API server from now on.
func (w *snapshots) countPodLists() *int {
	reader, count := CountLists[*corev1.PodList]()
	w.APIReader = reader
	return count
}

// podWithClaim returns a Pod that uses a claim.
func podWithClaim(ns, name, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "registry.example/c"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}

func withAgent(status *v1.VirtualMachineInstanceStatus) {
	WithCondition(v1.VirtualMachineInstanceAgentConnected, corev1.ConditionTrue, "", "")(status)
}

// request creates a snapshot of the VM.
func (w *snapshots) request(name string, changes ...func(*vmSnapshot)) *vmSnapshot {
	GinkgoHelper()
	return requestSnapshot(w.ns, name, changes...)
}

// requestSnapshot creates a snapshot of the VM in a namespace.
func requestSnapshot(ns, name string, changes ...func(*vmSnapshot)) *vmSnapshot {
	GinkgoHelper()
	of := &vmSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
	for _, change := range changes {
		change(of)
	}
	ExpectCreated(of)
	return ExpectExists(of)
}

// expectReconciled reconciles a snapshot once and expects exactly these writes, in this order: each step is the condition of the next.
func (w *snapshots) expectReconciled(of *vmSnapshot, writes ...string) ctrl.Result {
	GinkgoHelper()
	result, err := w.Reconcile(ctx, RequestOf(of))
	Expect(err).NotTo(HaveOccurred())
	w.writes.ExpectWrittenInOrder(writes...)
	return result
}

// expectContentReconciled reconciles the content of a snapshot once and expects exactly these writes, in this order.
func (w *snapshots) expectContentReconciled(of *vmSnapshot, writes ...string) ctrl.Result {
	GinkgoHelper()
	result, err := w.contents.Reconcile(ctx, RequestOf(ContentOf(of)))
	Expect(err).NotTo(HaveOccurred())
	w.writes.ExpectWrittenInOrder(writes...)
	return result
}

// settle reconciles until nothing is written any more, in place of the events of the writes. Errors of injected faults are allowed.
func (w *snapshots) settle(of *vmSnapshot) {
	GinkgoHelper()
	for range 20 {
		_, err := w.Reconcile(ctx, RequestOf(of))
		_, contentErr := w.contents.Reconcile(ctx, RequestOf(ContentOf(of)))
		if len(w.writes.Take()) == 0 && err == nil && contentErr == nil {
			return
		}
	}
	Fail("the snapshot is written in each reconciliation")
}

func volumeSnapshotOf(of *vmSnapshot, volume string) *csi.VolumeSnapshot {
	return &csi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "vmsnapshot-" + string(of.UID) + "-volume-" + volume}}
}

// report writes the status of the VolumeSnapshot of a volume, as the external-snapshotter does.
func (w *snapshots) report(of *vmSnapshot, volume string, ready bool) {
	GinkgoHelper()
	reportSnapshot(of, volume, ready, w.clock.Now())
}

// reportSnapshot writes the status of the VolumeSnapshot of a volume, which was taken at a time.
func reportSnapshot(of *vmSnapshot, volume string, ready bool, at time.Time) {
	GinkgoHelper()
	taken := ExpectExists(volumeSnapshotOf(of, volume))
	taken.Status = &csi.VolumeSnapshotStatus{CreationTime: ptr.To(metav1.NewTime(at).Rfc3339Copy()), ReadyToUse: &ready}
	Expect(K8sClient.Status().Update(ctx, taken)).To(Succeed())
}

// describe returns phase, reasons of the conditions and indications of a snapshot, which must exist.
func describe(of *vmSnapshot) string {
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

// isLocked reports whether the VM is locked for any snapshot, by both of its marks, or for none, by neither.
func isLocked(vm *v1.VirtualMachine) bool {
	GinkgoHelper()
	ExpectExists(vm)
	finalizer := slices.Contains(vm.Finalizers, "snapshot.kubevirt.io/snapshot-source-protection")
	Expect(vm.Status.SnapshotInProgress != nil).To(Equal(finalizer), "half a lock")
	return finalizer
}
