// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("An evicted VMI", func() {
	// evict changes a VMI and its Pod as the webhook does.
	evict := func(vmi *v1.VirtualMachineInstance) {
		GinkgoHelper()
		ExpectExists(vmi)
		eviction.Mark(&vmi.Status, metav1.Now())
		ExpectStatus(vmi)
		pod := ExpectExists(PodOf(vmi))
		eviction.Annotate(&pod.ObjectMeta, true)
		Expect(K8sClient.Update(ctx, pod)).To(Succeed())
	}

	It("keeps what the webhook wrote", func() {
		w := newWorld()
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		w.expectQuiet(vmi)
		evict(vmi)
		w.expectQuiet(vmi)
		Expect(eviction.ByDrain(&ExpectExists(PodOf(vmi)).ObjectMeta)).To(BeTrue())
	})

	It("loses the eviction's condition and annotation when evacuationNodeName is removed", func() {
		w := newWorld()
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		evict(vmi)
		marked := ExpectExists(vmi).DeepCopy()
		Expect(K8sClient.Status().Patch(ctx, vmi, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"evacuationNodeName":null}}`)))).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceEvictionRequested))
		Expect(eviction.IsAnnotated(&ExpectExists(PodOf(vmi)).ObjectMeta)).To(BeFalse())
		w.expectQuiet(vmi)

		// The API server decides, not the cache.
		unmarked := ExpectExists(vmi).DeepCopy()
		vmi.Status = marked.Status
		ExpectStatus(vmi)
		pod := ExpectExists(PodOf(vmi))
		eviction.Annotate(&pod.ObjectMeta, true)
		Expect(K8sClient.Update(ctx, pod)).To(Succeed())
		w.Writes.Stale = unmarked
		w.expectQuiet(vmi)
		Expect(eviction.ByDrain(&ExpectExists(PodOf(vmi)).ObjectMeta)).To(BeTrue())
	})

	It("gets the condition whichever client sets evacuationNodeName, and loses both if the guest is on another node",
		func() {
			w := newWorld()
			vmi := w.assigned(builder.MakeVMI("vm"))
			ReportAsAgent(vmi, Running)
			ExpectExists(vmi).Status.EvacuationNodeName = "node-1"
			ExpectStatus(vmi)
			w.Step(vmi)
			Expect(ExpectExists(vmi)).To(
				HaveCondition(v1.VirtualMachineInstanceEvictionRequested, corev1.ConditionTrue, "EvictionRequested", "node-1"))
			vmi.Status.EvacuationNodeName = "node-0"
			ExpectStatus(vmi)
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.EvacuationNodeName).To(BeEmpty())
			Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstanceEvictionRequested))
		})
})
