// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/eviction"
	"github.com/vireo-project/vireo/test/builder"
)

var _ = Describe("A VMI that has to leave its node", func() {
	// evict does to a VMI and its Pod what the webhook does.
	evict := func(vmi *v1.VirtualMachineInstance) {
		GinkgoHelper()
		ExpectExists(vmi)
		eviction.Mark(&vmi.Status, metav1.Now())
		ExpectStatus(vmi)
		pod := ExpectExists(podOf(vmi))
		eviction.Annotate(&pod.ObjectMeta, true)
		Expect(k8sClient.Update(ctx, pod)).To(Succeed())
	}

	It("is left as the webhook wrote it", func() {
		w := newWorld()
		vmi := w.handedOver(builder.MakeVMI("vm"))
		agent(vmi, running)
		w.expectQuiet(vmi)
		evict(vmi)
		w.expectQuiet(vmi)
		Expect(eviction.ByDrain(&ExpectExists(podOf(vmi)).ObjectMeta)).To(BeTrue())
	})

	It("looks as if nothing had been when somebody took the mark away", func() {
		w := newWorld()
		vmi := w.handedOver(builder.MakeVMI("vm"))
		agent(vmi, running)
		evict(vmi)
		marked := ExpectExists(vmi).DeepCopy()
		Expect(k8sClient.Status().Patch(ctx, vmi, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"evacuationNodeName":null}}`)))).To(Succeed())
		w.expectReconciled(vmi, "patch Pod", "patch VirtualMachineInstance/status")
		Expect(ExpectExists(vmi)).To(haveNoCondition(v1.VirtualMachineInstanceEvictionRequested))
		Expect(eviction.IsAnnotated(&ExpectExists(podOf(vmi)).ObjectMeta)).To(BeFalse())
		w.expectQuiet(vmi)

		// A cache that shows no mark is not believed.
		unmarked := ExpectExists(vmi).DeepCopy()
		vmi.Status = marked.Status
		ExpectStatus(vmi)
		pod := ExpectExists(podOf(vmi))
		eviction.Annotate(&pod.ObjectMeta, true)
		Expect(k8sClient.Update(ctx, pod)).To(Succeed())
		w.writes.Stale = unmarked
		w.expectQuiet(vmi)
		Expect(eviction.ByDrain(&ExpectExists(podOf(vmi)).ObjectMeta)).To(BeTrue())
	})

	It("says so by a condition, whoever marked it, and forgets a mark for a node that the guest has left", func() {
		w := newWorld()
		vmi := w.handedOver(builder.MakeVMI("vm"))
		agent(vmi, running)
		ExpectExists(vmi).Status.EvacuationNodeName = "node-1"
		ExpectStatus(vmi)
		w.expectReconciled(vmi, "patch VirtualMachineInstance/status")
		Expect(ExpectExists(vmi)).To(haveCondition(v1.VirtualMachineInstanceEvictionRequested, corev1.ConditionTrue, "EvictionRequested", "node-1"))
		vmi.Status.EvacuationNodeName = "node-0"
		ExpectStatus(vmi)
		w.expectReconciled(vmi, "patch VirtualMachineInstance/status")
		Expect(ExpectExists(vmi).Status.EvacuationNodeName).To(BeEmpty())
		Expect(vmi).To(haveNoCondition(v1.VirtualMachineInstanceEvictionRequested))
	})
})
