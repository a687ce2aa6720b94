// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// callVerb calls a verb of virt-api.
func callVerb(vm *v1.VirtualMachine, verb, body string) error {
	GinkgoHelper()
	for _, v := range (&subresource.API{Client: K8sClient}).Verbs(nil) {
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

// settleWithGuest alternates between the VM's reconciler and a simulated agent until neither writes anything. The
// agent's guests start at once, and shut down when their VMI is deleted.
func (m *vmHarness) settleWithGuest(vm *v1.VirtualMachine) {
	GinkgoHelper()
	const limit = 20 // many more than any change needs
	for range limit {
		m.Settle(vm)
		if !m.guest(vm) {
			return
		}
	}
	Fail("the VM is still written to")
}

// guest makes the next change that the agent and the VMI's reconciler would make, and reports whether there was one.
func (m *vmHarness) guest(vm *v1.VirtualMachine) bool {
	GinkgoHelper()
	vmi := InstanceKey(vm)
	if err := K8sClient.Get(ctx, client.ObjectKeyFromObject(vmi), vmi); err != nil {
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		return false
	}
	switch {
	case vmi.DeletionTimestamp != nil && !vmi.IsFinal():
		SetVMIStatus(vmi, v1.Succeeded)
		removeFinalizer(vmi)
	case vmi.DeletionTimestamp == nil && vmi.IsUnprocessed():
		SetVMIStatus(vmi, v1.Running, Running, revised(vmi))
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
		m.settleWithGuest(vm)
		if show(vm) == v1.VirtualMachineStatusRunning {
			Expect(callVerb(vm, "stop", "{}")).To(Succeed())
			m.settleWithGuest(vm)
		}
		for range rounds {
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
			ExpectGone(InstanceKey(vm))
			Expect(callVerb(vm, "start", "{}")).To(Succeed())
			m.settleWithGuest(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
			Expect(callVerb(vm, "stop", "{}")).To(Succeed())
			m.settleWithGuest(vm)
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
		m.settleWithGuest(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		Expect(callVerb(vm, "restart", "{}")).To(MatchError(ContainSubstring("does not support manual restart requests")))
		Expect(callVerb(vm, "start", "{}")).To(MatchError(ContainSubstring("VM is already running")))
		for range rounds {
			Expect(callVerb(vm, "stop", "{}")).To(Succeed())
			m.settleWithGuest(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
			Expect(callVerb(vm, "start", "{}")).To(Succeed())
			m.settleWithGuest(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		}
	})

	DescribeTable("restarts five times in a row", func(strategy v1.VirtualMachineRunStrategy) {
		vm := m.create(builder.MakeVM("vm").Strategy(strategy))
		m.settleWithGuest(vm)
		if strategy == v1.RunStrategyManual {
			Expect(callVerb(vm, "start", "{}")).To(Succeed())
			m.settleWithGuest(vm)
		}
		for range rounds {
			before := InstanceOf(vm).UID
			Expect(callVerb(vm, "restart", "{}")).To(Succeed())
			m.settleWithGuest(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
			Expect(InstanceOf(vm).UID).NotTo(Equal(before))
		}
	},
		Entry(nil, v1.RunStrategyAlways),
		Entry(nil, v1.RunStrategyManual),
		Entry(nil, v1.RunStrategyRerunOnFailure),
	)

	// runs starts a VM of a run strategy.
	runs := func(strategy v1.VirtualMachineRunStrategy) *v1.VirtualMachine {
		GinkgoHelper()
		vm := m.create(builder.MakeVM("vm").Strategy(strategy))
		m.settleWithGuest(vm)
		if strategy == v1.RunStrategyManual {
			Expect(callVerb(vm, "start", "{}")).To(Succeed())
			m.settleWithGuest(vm)
		}
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		return vm
	}
	setStrategy := func(vm *v1.VirtualMachine, strategy v1.VirtualMachineRunStrategy) {
		GinkgoHelper()
		ExpectExists(vm).Spec.RunStrategy = &strategy
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
	}
	expectStopped := func(vm *v1.VirtualMachine, strategy v1.VirtualMachineRunStrategy) {
		GinkgoHelper()
		m.settleWithGuest(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		Expect(vm.RunStrategy()).To(Equal(strategy))
		ExpectGone(InstanceKey(vm))
	}

	DescribeTable("stays off if it is stopped during a restart", func(strategy, after v1.VirtualMachineRunStrategy) {
		By("before the VMI is deleted")
		vm := runs(strategy)
		Expect(callVerb(vm, "restart", "{}")).To(Succeed())
		Expect(callVerb(vm, "stop", "{}")).To(Succeed())
		expectStopped(vm, after)

		By("when the VMI is gone")
		Expect(callVerb(vm, "start", "{}")).To(Succeed())
		m.settleWithGuest(vm)
		Expect(callVerb(vm, "restart", "{}")).To(Succeed())
		for range 2 {
			m.Step(vm)
			m.guest(vm)
		}
		ExpectGone(InstanceKey(vm))
		Expect(ExpectExists(vm).Status.StateChangeRequests).NotTo(BeEmpty(), "the start is yet to come")
		Expect(callVerb(vm, "stop", "{}")).To(Succeed())
		expectStopped(vm, after)

		By("starting it again during the stop")
		Expect(callVerb(vm, "start", "{}")).To(Succeed())
		m.settleWithGuest(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
	},
		Entry(nil, v1.RunStrategyAlways, v1.RunStrategyHalted),
		Entry(nil, v1.RunStrategyManual, v1.RunStrategyManual),
		Entry(nil, v1.RunStrategyRerunOnFailure, v1.RunStrategyRerunOnFailure),
	)

	DescribeTable("carries out no request that was made under another run strategy",
		func(before, after v1.VirtualMachineRunStrategy, keeps bool) {
			vm := runs(before)
			vmi := InstanceOf(vm)
			Expect(callVerb(vm, "restart", "{}")).To(Succeed())
			setStrategy(vm, after)
			if !keeps {
				expectStopped(vm, after)
				return
			}
			m.settleWithGuest(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
			Expect(InstanceOf(vm).UID).To(Equal(vmi.UID))
		},
		Entry(nil, v1.RunStrategyAlways, v1.RunStrategyHalted, false),
		Entry(nil, v1.RunStrategyManual, v1.RunStrategyHalted, false),
		Entry(nil, v1.RunStrategyRerunOnFailure, v1.RunStrategyHalted, false),
		Entry(nil, v1.RunStrategyAlways, v1.RunStrategyManual, true),
		Entry(nil, v1.RunStrategyManual, v1.RunStrategyAlways, true),
		Entry(nil, v1.RunStrategyAlways, v1.RunStrategyRerunOnFailure, true),
	)

	It("starts a VM on a request under a new run strategy that virt-controller has not observed", func() {
		vm := runs(v1.RunStrategyAlways)
		Expect(callVerb(vm, "stop", "{}")).To(Succeed())
		m.settleWithGuest(vm)
		setStrategy(vm, v1.RunStrategyManual)
		Expect(callVerb(vm, "start", "{}")).To(Succeed())
		m.settleWithGuest(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
	})

	DescribeTable("stays off if a paused start is stopped", func(strategy v1.VirtualMachineRunStrategy) {
		vm := m.create(builder.MakeVM("vm").Strategy(strategy))
		m.settleWithGuest(vm)
		Expect(callVerb(vm, "start", `{"paused":true}`)).To(Succeed())
		By("before virt-controller observes it")
		Expect(callVerb(vm, "stop", "{}")).To(Succeed())
		expectStopped(vm, strategy)

		By("while the VMI cannot be created")
		Expect(callVerb(vm, "start", `{"paused":true}`)).To(Succeed())
		m.Writes.Fail = func(request string) error {
			if request == createInstance {
				return apierrors.NewForbidden(v1.GroupVersion.WithResource("vmis").GroupResource(), "vm", errors.New("denied"))
			}
			return nil
		}
		_, err := m.Try(vm)
		Expect(err).To(MatchError(ContainSubstring("denied")))
		m.Writes.Fail = nil
		Expect(callVerb(vm, "stop", "{}")).To(Succeed())
		expectStopped(vm, strategy)
	},
		Entry(nil, v1.RunStrategyHalted),
		Entry(nil, v1.RunStrategyManual),
	)

	DescribeTable("starts paused", func(b *builder.VM) {
		vm := m.create(b)
		m.settleWithGuest(vm)
		Expect(callVerb(vm, "start", `{"paused":true}`)).To(Succeed())
		m.settleWithGuest(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		Expect(InstanceOf(vm).Spec.StartStrategy).To(HaveValue(Equal(v1.StartStrategyPaused)))
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
