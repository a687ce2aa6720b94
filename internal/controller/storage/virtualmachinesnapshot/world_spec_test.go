// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinesnapshot"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinesnapshotcontent"
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
	createVolumeSnap    = "create VolumeSnapshot"
	patchVM             = "patch VirtualMachine"
	patchVMStatus       = "patch VirtualMachine/status"
	patchVMIStatus      = "patch VirtualMachineInstance/status"
)

type vmSnapshot = snapshotv1beta1.VirtualMachineSnapshot

// snapshots are the reconcilers of snapshots and contents on the suite's API server, with a clock that the spec sets.
// The two take a snapshot together, and each step of one is the condition of a step of the other.
type snapshots struct {
	*virtualmachinesnapshot.Reconciler
	Steps
	contents contents
	events   *RecordedEvents
	clock    *clocktesting.FakePassiveClock
	ns       string
}

// contents is the reconciler of contents. It writes through the same client as that of snapshots.
type contents struct {
	*virtualmachinesnapshotcontent.Reconciler
	Steps
}

func newSnapshots() *snapshots {
	GinkgoHelper()
	w := &snapshots{
		Steps:  Steps{Writes: NewWrites()},
		events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewSnapshotStorage(),
	}
	w.Reconciler = &virtualmachinesnapshot.Reconciler{
		Client: w.Writes, APIReader: AsController, Recorder: w.events, Clock: w.clock,
		VolumeSnapshots: VolumeSnapshots{}, DataVolumes: DataVolumes{},
	}
	w.contents.Reconciler = &virtualmachinesnapshotcontent.Reconciler{
		Client: w.Writes, APIReader: AsController, Recorder: w.events, Clock: w.clock, VolumeSnapshots: VolumeSnapshots{},
	}
	w.Of = w.Reconciler
	w.contents.Steps = Steps{Of: w.contents.Reconciler, Writes: w.Writes}
	return w
}

// vm creates a stopped VM with a disk.
func (w *snapshots) vm(change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	GinkgoHelper()
	return VMWithSnapshots(w.ns, change...)
}

// guest creates the VMI of a VM, whose guest runs.
func (w *snapshots) guest(
	vm *v1.VirtualMachine, changes ...func(*v1.VirtualMachineInstanceStatus),
) *v1.VirtualMachineInstance {
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

// lock reconciles a snapshot once, and expects that it has locked the VM and stored it in its content.
func (w *snapshots) lock(of *vmSnapshot) {
	GinkgoHelper()
	w.Step(of)
	Expect(IsLockedForSnapshot(builder.MakeVM("vm").Namespace(w.ns).Obj())).To(BeTrue())
	Expect(ExpectExists(ContentOf(of)).Spec.Source.VirtualMachine.Name).To(Equal("vm"))
	Expect(DescribeSnapshot(of)).To(HavePrefix(snapshotTakes))
}

// take reconciles the content of a snapshot once, and expects that its VolumeSnapshot has been requested.
func (w *snapshots) take(of *vmSnapshot) {
	GinkgoHelper()
	w.contents.Step(ContentOf(of))
	ExpectExists(VolumeSnapshotOf(of, "root"))
}

// settleBoth reconciles a snapshot and its content until nothing is written any more, in place of the events of the
// writes. Errors of injected faults are allowed.
func (w *snapshots) settleBoth(of *vmSnapshot) {
	GinkgoHelper()
	w.Writes.Take()
	for range 20 {
		_, err := w.Try(of)
		_, contentErr := w.contents.Try(ContentOf(of))
		if len(w.Writes.Take()) == 0 && err == nil && contentErr == nil {
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
