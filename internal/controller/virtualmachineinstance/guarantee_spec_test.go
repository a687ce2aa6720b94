// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A VMI with dedicated CPUs", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	dedicated := func() *builder.VMI {
		return builder.MakeVMI("vm").CPU(1, 2, 1).Request("memory", "1Gi").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU.DedicatedCPUPlacement = true
		})
	}

	It("is assigned if its Pod is Guaranteed", func() {
		vmi := w.assigned(dedicated())
		Expect(vmi.Status.Phase).To(Equal(v1.Scheduled))
		Expect(vmi.Status.QOSClass).To(HaveValue(Equal(corev1.PodQOSGuaranteed)))
	})

	It("fails if its Pod is not Guaranteed, and deletes the Pod", func() {
		vmi := w.create(dedicated())
		w.Step(vmi)
		w.makeBurstable(vmi)
		SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Running())
		w.events.Take()

		w.Step(vmi)
		vmi = ExpectExists(vmi)
		Expect(vmi.Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal(virtualmachineinstance.ReasonFailedGuarantee))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason,
			"Burstable and not Guaranteed"))
		Expect(vmi.Labels).NotTo(HaveKey(v1.NodeNameLabel), "no agent gets the guest")
		Expect(w.events.Take()).To(ContainElement(HavePrefix("Warning FailedGuaranteeResources: ")))

		w.Step(vmi)
		Expect(ExpectExists(PodOf(vmi)).DeletionTimestamp).NotTo(BeNil())
		w.events.Take()
		w.expectQuiet(vmi)
	})
})

// makeBurstable replaces the launcher Pod by one to which an admission webhook added a container.
func (w *world) makeBurstable(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	pod := ExpectExists(PodOf(vmi))
	changed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels,
			OwnerReferences: pod.OwnerReferences},
		Spec: *pod.Spec.DeepCopy(),
	}
	changed.Spec.Containers = append(changed.Spec.Containers, corev1.Container{Name: "proxy", Image: "proxy"})
	Expect(K8sClient.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
	Eventually(func() error { return K8sClient.Create(ctx, changed.DeepCopy()) }).WithTimeout(10 * time.Second).
		Should(Succeed())
}
