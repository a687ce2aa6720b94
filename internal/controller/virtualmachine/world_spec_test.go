// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// vmHarness is a VM reconciler on the suite's API server, with a clock that the spec sets.
type vmHarness struct {
	*virtualmachine.Reconciler
	Steps
	events *RecordedEvents
	clock  *clocktesting.FakePassiveClock
	ns     string
}

// Writes of a VM's reconciliation.
const (
	createInstance   = "create VirtualMachineInstance"
	patchInstance    = "patch VirtualMachineInstance"
	patchVMStatus    = "patch VirtualMachine/status"
	createVMRevision = "create ControllerRevision"
	deleteVMRevision = "delete ControllerRevision"
)

func newVMHarness() *vmHarness {
	m := &vmHarness{
		Steps:  Steps{Writes: NewWrites()},
		events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace(),
	}
	m.Reconciler = &virtualmachine.Reconciler{
		Client: m.Writes, APIReader: AsController, Recorder: m.events, Clock: m.clock,
		Config: FixedConfig{Config: clusterconfig.Default()}, DataVolumes: DataVolumes{}, VolumeSnapshots: VolumeSnapshots{},
	}
	m.Of = m.Reconciler
	return m
}

func (m *vmHarness) create(b *builder.VM) *v1.VirtualMachine {
	GinkgoHelper()
	vm := b.Namespace(m.ns).Finalizers(v1.VirtualMachineControllerFinalizer).Obj()
	firmware.NewRecord(vm.Namespace, vm.Name).Annotate(&vm.ObjectMeta)
	ExpectCreated(vm)
	return ExpectExists(vm)
}

// expectQuiet expects that a reconciliation neither writes nor records events.
func (m *vmHarness) expectQuiet(vm *v1.VirtualMachine) {
	GinkgoHelper()
	m.ExpectSteady(vm)
	Expect(m.events.Take()).To(BeEmpty())
}

// started creates and starts a VM; its VMI runs.
func (m *vmHarness) started(b *builder.VM) (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
	GinkgoHelper()
	vm := m.create(b)
	m.Step(vm)
	vmi := InstanceOf(vm)
	SetVMIStatus(vmi, v1.Running, Running)
	m.Step(vm)
	m.events.Take()
	return ExpectExists(vm), vmi
}

// show returns what a VM shows its users.
func show(vm *v1.VirtualMachine) v1.VirtualMachinePrintableStatus {
	GinkgoHelper()
	return ExpectExists(vm).Status.PrintableStatus
}

// expectStopping expects that a VMI is being deleted.
func expectStopping(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	Expect(ExpectExists(vmi).DeletionTimestamp).NotTo(BeNil())
}

// endInstance deletes a VM's VMI, whose guest shuts down, until it is gone.
func (m *vmHarness) endInstance(vm *v1.VirtualMachine) {
	GinkgoHelper()
	vmi := InstanceOf(vm)
	Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
	SetVMIStatus(vmi, v1.Succeeded)
	removeFinalizer(vmi)
	m.Step(vm)
	ExpectGone(vmi)
}

// changeTemplate changes a VM's template, as a user does.
func changeTemplate(vm *v1.VirtualMachine, how func(*v1.VirtualMachineInstanceTemplateSpec)) {
	GinkgoHelper()
	how(ExpectExists(vm).Spec.Template)
	Expect(K8sClient.Update(ctx, vm)).To(Succeed())
}

// generationsOf formats the generations in a VM's metadata, status and VMI.
func generationsOf(vm *v1.VirtualMachine) string {
	GinkgoHelper()
	ExpectExists(vm)
	return fmt.Sprintf("generation %d desired %d observed %d instance %s", vm.Generation, vm.Status.DesiredGeneration,
		vm.Status.ObservedGeneration, InstanceOf(vm).Annotations[v1.VirtualMachineGenerationAnnotation])
}

// removeFinalizer removes the finalizer of the VMI's reconciler, as that does when the Pod is gone.
func removeFinalizer(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	ExpectExists(vmi)
	controllerutil.RemoveFinalizer(vmi, v1.VirtualMachineInstanceFinalizer)
	Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
}

func haveNoVMCondition(kind v1.VirtualMachineConditionType) gomegatypes.GomegaMatcher {
	return WithTransform(func(vm *v1.VirtualMachine) []v1.VirtualMachineConditionType {
		var kinds []v1.VirtualMachineConditionType
		for _, c := range vm.Status.Conditions {
			kinds = append(kinds, c.Type)
		}
		return kinds
	}, Not(ContainElement(kind)))
}
