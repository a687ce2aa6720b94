// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// world is a VMI reconciler with the suite's API server and a fake clock.
type world struct {
	*virtualmachineinstance.Reconciler
	writes *Writes
	events *RecordedEvents
	clock  *clocktesting.FakePassiveClock
	ns     string
}

func newWorld() *world {
	w := &world{writes: NewWrites(), events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace()}
	w.Reconciler = &virtualmachineinstance.Reconciler{
		Client: w.writes, APIReader: AsController, Recorder: w.events, AgentRecorder: w.events.Agent, Config: FixedConfig{Config: VMIConfig()}, Clock: w.clock,
		Namespace: "kubevirt", DataVolumes: DataVolumes{},
	}
	return w
}

func (w *world) create(b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	return CreateVMI(w.ns, b)
}

func (w *world) reconcile(vmi *v1.VirtualMachineInstance) (ctrl.Result, error) {
	return Reconcile(w.Reconciler, vmi)
}

// expectReconciled reconciles once and expects exactly these writes, in any order.
func (w *world) expectReconciled(vmi *v1.VirtualMachineInstance, writes ...string) ctrl.Result {
	GinkgoHelper()
	return w.writes.ExpectReconciled(w.Reconciler, vmi, writes...)
}

// expectReconciledInOrder reconciles once and expects exactly these writes, in this order.
func (w *world) expectReconciledInOrder(vmi *v1.VirtualMachineInstance, writes ...string) {
	GinkgoHelper()
	w.writes.ExpectReconciledInOrder(w.Reconciler, vmi, writes...)
}

// expectQuiet reconciles once and expects neither a write nor an event.
func (w *world) expectQuiet(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	w.expectReconciled(vmi)
	Expect(w.events.Take()).To(BeEmpty())
}

// advance advances the clock.
func (w *world) advance(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }

// assigned creates a VMI and reconciles it until it is Scheduled, on a node that does not exist.
func (w *world) assigned(b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	return w.assignedTo("node-1", b)
}

func (w *world) assignedTo(host string, b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := w.create(b)
	w.expectReconciled(vmi, "create Pod")
	SetLauncherStatus(vmi, host, builder.MakePodStatus().Running())
	w.expectReconciled(vmi, "patch VirtualMachineInstance", "patch Pod/status", "patch VirtualMachineInstance/status")
	w.events.Take()
	return ExpectExists(vmi)
}
