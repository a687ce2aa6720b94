// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A lost node", func() {
	var (
		w    *world
		host *corev1.Node
		vmi  *v1.VirtualMachineInstance
	)
	BeforeEach(func() {
		w = newWorld()
		host = &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
		Expect(K8sClient.Create(ctx, host)).To(Succeed())
		vmi = w.assignedTo(host.Name, builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
	})

	It("does not end its VMI, which reports how to take the node out of service", func() {
		MakeUnresponsive(host.Name, corev1.ConditionUnknown)
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue,
			v1.VirtualMachineInstanceReasonNodeLost,
			"kubectl taint nodes "+host.Name+" node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"))
		Expect(vmi.Status.Reason).To(Equal(node.ReasonNodeUnresponsive))
		Expect(vmi.Status.Phase).To(Equal(v1.Running))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, node.ReasonNodeUnresponsive,
			host.Name))
		Expect(w.events.Take()).To(ConsistOf(ContainSubstring("may still run")))
		w.expectQuiet(vmi)
		w.advance(time.Hour)
		w.expectQuiet(vmi)
		Expect(ExpectExists(PodOf(vmi)).DeletionTimestamp).To(BeNil())

		delete(ExpectExists(host).Annotations, node.UnresponsiveAnnotation)
		metav1.SetMetaDataLabel(&host.ObjectMeta, v1.NodeSchedulable, "true")
		Expect(K8sClient.Update(ctx, host)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceNodeUnresponsive))
		Expect(vmi.Status.Reason).To(BeEmpty())
	})

	It("is not lost while its kubelet responds, even with the taint", func() {
		DeclareOutOfService(MakeUnresponsive(host.Name, corev1.ConditionTrue))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue,
			v1.VirtualMachineInstanceReasonAgentSilent, "has no effect while the kubelet responds"))
		w.events.Take()
		w.expectQuiet(vmi)
		Expect(ExpectExists(PodOf(vmi)).DeletionTimestamp).To(BeNil())
	})

	It("is not lost while its agent responds", func() {
		DeclareOutOfService(host)
		w.expectQuiet(vmi)
	})

	It("fails its VMI when it is declared out of service", func() {
		MakeUnresponsive(host.Name, corev1.ConditionUnknown)
		w.Step(vmi)
		DeclareOutOfService(host)
		w.events.Take()
		w.Step(vmi)
		Expect(w.events.Take()).To(ContainElement(HavePrefix("Warning NodeOutOfService: ")))
		ExpectGone(PodOf(vmi))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running), "the VMI fails only when the Pod no longer exists")

		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal(node.ReasonNodeUnresponsive))
		Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstanceNodeUnresponsive))
		w.events.Take()
		w.expectQuiet(vmi)
	})

	It("removes a deleted VMI when it is declared out of service", func() {
		MakeUnresponsive(host.Name, corev1.ConditionUnknown)
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(PodOf(vmi)).DeletionTimestamp).NotTo(BeNil())
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue,
			v1.VirtualMachineInstanceReasonNodeLost, "It is shut down when the node is back"))
		DeclareOutOfService(host)
		w.Step(vmi)
		ExpectGone(PodOf(vmi))
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
		w.advance(ShownFor)
		w.Step(vmi)
		ExpectGone(vmi)
	})

	It("does not end the VMI while the Pod cannot be deleted", func() {
		MakeUnresponsive(host.Name, corev1.ConditionUnknown)
		DeclareOutOfService(host)
		w.Writes.Fail = func(request string) error {
			if request == "delete Pod" {
				return ErrInjected
			}
			return nil
		}
		_, err := w.Try(vmi)
		Expect(err).To(MatchError(ErrInjected))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		ExpectExists(PodOf(vmi))
	})
})
