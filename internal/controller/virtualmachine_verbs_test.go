// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"net/http"
	"net/http/httptest"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/test/builder"
)

// callVerb calls a verb of virt-api.
func callVerb(vm *v1.VirtualMachine, verb, body string) error {
	GinkgoHelper()
	for _, v := range (&subresource.API{Client: k8sClient}).Verbs(nil) {
		if v.Resource != subresource.VirtualMachines || v.Name != verb {
			continue
		}
		request := httptest.NewRequestWithContext(ctx, http.MethodPut, "/", strings.NewReader(body))
		request.SetPathValue("namespace", vm.Namespace)
		request.SetPathValue("name", vm.Name)
		return v.Serve(httptest.NewRecorder(), request)
	}
	Fail("there is no verb " + verb)
	return nil
}

// settle alternates between the VM's reconciler and a simulated agent until neither writes anything. The agent's guests start at
// once, and shut down when their VMI is deleted.
func (m *vmHarness) settle(vm *v1.VirtualMachine) {
	GinkgoHelper()
	const limit = 20 // many more than any change needs
	for range limit {
		_, err := m.reconcile(vm)
		Expect(err).NotTo(HaveOccurred())
		if len(m.writes.Take()) == 0 && !m.guest(vm) {
			return
		}
	}
	Fail("the VM is still written to")
}

// guest makes the next change that the agent and the VMI's reconciler would make, and reports whether there was one.
func (m *vmHarness) guest(vm *v1.VirtualMachine) bool {
	GinkgoHelper()
	vmi := instanceKey(vm)
	if err := k8sClient.Get(ctx, client.ObjectKeyFromObject(vmi), vmi); err != nil {
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		return false
	}
	switch {
	case vmi.DeletionTimestamp != nil && !vmi.IsFinal():
		setStatus(vmi, v1.Succeeded)
		removeFinalizer(vmi)
	case vmi.DeletionTimestamp == nil && vmi.IsUnprocessed():
		setStatus(vmi, v1.Running, running, revised(vmi))
	default:
		return false
	}
	return true
}

var _ = Describe("VirtualMachine with the verbs of virt-api", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	show := func(vm *v1.VirtualMachine) v1.VirtualMachinePrintableStatus {
		GinkgoHelper()
		ExpectExists(vm)
		Expect(vm.Status.ObservedGeneration).To(Equal(vm.Generation), "the generations converge")
		Expect(vm.Status.DesiredGeneration).To(Equal(vm.Generation))
		Expect(vm.Status.StateChangeRequests).To(BeEmpty())
		return vm.Status.PrintableStatus
	}
	const rounds = 5

	DescribeTable("starts and stops five times in a row", func(strategy v1.VirtualMachineRunStrategy) {
		vm := m.create(builder.MakeVM("vm").Strategy(strategy))
		m.settle(vm)
		if show(vm) == v1.VirtualMachineStatusRunning {
			Expect(callVerb(vm, "stop", "{}")).To(Succeed())
			m.settle(vm)
		}
		for range rounds {
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
			ExpectGone(instanceKey(vm))
			Expect(callVerb(vm, "start", "{}")).To(Succeed())
			m.settle(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
			Expect(callVerb(vm, "stop", "{}")).To(Succeed())
			m.settle(vm)
		}
		Expect(vm.Status.StartFailure).To(BeNil())
		Expect(m.revisions(vm)).To(HaveLen(1), "the revisions of earlier starts are deleted")
	},
		Entry(nil, v1.RunStrategyAlways),
		Entry(nil, v1.RunStrategyHalted),
		Entry(nil, v1.RunStrategyManual),
		Entry(nil, v1.RunStrategyRerunOnFailure),
	)

	It("starts a Once VM, stops it, and starts it again as Always, five times in a row", func() {
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyOnce))
		m.settle(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		Expect(callVerb(vm, "restart", "{}")).To(MatchError(ContainSubstring("does not support manual restart requests")))
		Expect(callVerb(vm, "start", "{}")).To(MatchError(ContainSubstring("VM is already running")))
		for range rounds {
			Expect(callVerb(vm, "stop", "{}")).To(Succeed())
			m.settle(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
			Expect(callVerb(vm, "start", "{}")).To(Succeed())
			m.settle(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		}
	})

	DescribeTable("restarts five times in a row", func(strategy v1.VirtualMachineRunStrategy) {
		vm := m.create(builder.MakeVM("vm").Strategy(strategy))
		m.settle(vm)
		if strategy == v1.RunStrategyManual {
			Expect(callVerb(vm, "start", "{}")).To(Succeed())
			m.settle(vm)
		}
		for range rounds {
			before := instance(vm).UID
			Expect(callVerb(vm, "restart", "{}")).To(Succeed())
			m.settle(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
			Expect(instance(vm).UID).NotTo(Equal(before))
		}
	},
		Entry(nil, v1.RunStrategyAlways),
		Entry(nil, v1.RunStrategyManual),
		Entry(nil, v1.RunStrategyRerunOnFailure),
	)

	DescribeTable("starts paused", func(b *builder.VM) {
		vm := m.create(b)
		m.settle(vm)
		Expect(callVerb(vm, "start", `{"paused":true}`)).To(Succeed())
		m.settle(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		Expect(instance(vm).Spec.StartStrategy).To(HaveValue(Equal(v1.StartStrategyPaused)))
		strategy, err := vm.RunStrategy()
		Expect(err).NotTo(HaveOccurred())
		Expect(strategy).NotTo(Equal(v1.RunStrategyHalted))
		Expect(vm.Spec.Template.Spec.StartStrategy).To(BeNil(), "the user's template does not change")
	},
		Entry("Halted", builder.MakeVM("vm").Strategy(v1.RunStrategyHalted)),
		Entry("running: false", builder.MakeVM("vm").With(func(vm *v1.VirtualMachine) {
			no := false
			vm.Spec.RunStrategy, vm.Spec.Running = nil, &no
		})),
		Entry("Manual", builder.MakeVM("vm").Strategy(v1.RunStrategyManual)),
	)
})
