// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
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
	patchVM             = "patch VirtualMachine"
	patchVMStatus       = "patch VirtualMachine/status"
	patchVMIStatus      = "patch VirtualMachineInstance/status"
)

type vmSnapshot = snapshotv1beta1.VirtualMachineSnapshot

// snapshots are the reconcilers of snapshots and contents on the suite's API server, with a clock that the spec sets. The two
// take a snapshot together, and each step of one is the condition of a step of the other.
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
	w := &snapshots{writes: NewWrites(), events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewSnapshotStorage()}
	w.Reconciler = &virtualmachinesnapshot.Reconciler{
		Client: w.writes, APIReader: AsController, Recorder: w.events, Clock: w.clock,
		VolumeSnapshots: VolumeSnapshots{}, DataVolumes: DataVolumes{},
	}
	w.contents = &virtualmachinesnapshotcontent.Reconciler{
		Client: w.writes, APIReader: AsController, Recorder: w.events, Clock: w.clock, VolumeSnapshots: VolumeSnapshots{},
	}
	return w
}

// vm creates a stopped VM with a disk.
func (w *snapshots) vm(change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	GinkgoHelper()
	return VMWithSnapshots(w.ns, change...)
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

func withAgent(status *v1.VirtualMachineInstanceStatus) {
	WithCondition(v1.VirtualMachineInstanceAgentConnected, corev1.ConditionTrue, "", "")(status)
}

// request creates a snapshot of the VM.
func (w *snapshots) request(name string, changes ...func(*vmSnapshot)) *vmSnapshot {
	GinkgoHelper()
	return RequestSnapshot(w.ns, name, changes...)
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

// report writes the status of the VolumeSnapshot of a volume, as the external-snapshotter does.
func (w *snapshots) report(of *vmSnapshot, volume string, ready bool) {
	GinkgoHelper()
	ReportSnapshot(of, volume, ready, w.clock.Now())
}
