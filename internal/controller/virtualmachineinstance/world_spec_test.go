// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// world is a VMI reconciler with the suite's API server and a fake clock.
type world struct {
	*virtualmachineinstance.Reconciler
	Steps
	events *RecordedEvents
	clock  *clocktesting.FakePassiveClock
	ns     string
}

func newWorld() *world {
	w := &world{
		Steps:  Steps{Writes: NewWrites()},
		events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace(),
	}
	w.Reconciler = &virtualmachineinstance.Reconciler{
		Client: w.Writes, APIReader: AsController, Recorder: w.events, AgentRecorder: w.events.Agent,
		Config: FixedConfig{Config: VMIConfig()}, Clock: w.clock, Namespace: "kubevirt", DataVolumes: DataVolumes{},
	}
	w.Of = w.Reconciler
	return w
}

func (w *world) create(b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	return CreateVMI(w.ns, b)
}

// expectQuiet reconciles once and expects neither a write nor an event.
func (w *world) expectQuiet(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	w.ExpectSteady(vmi)
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
	w.Step(vmi)
	w.assign(vmi, host)
	w.events.Take()
	return ExpectExists(vmi)
}

// assign has the launcher Pod of a VMI run, on a node unless it has one, and reconciles the VMI until it is Scheduled.
func (w *world) assign(vmi *v1.VirtualMachineInstance, host string) {
	GinkgoHelper()
	SetLauncherStatus(vmi, host, builder.MakePodStatus().Running())
	w.Step(vmi)
	Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduled))
}
