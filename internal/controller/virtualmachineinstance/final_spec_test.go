// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// podOfKubeVirt creates a launcher Pod as KubeVirt names it, beside that of virt-controller.
func podOfKubeVirt(vmi *v1.VirtualMachineInstance) *corev1.Pod {
	GinkgoHelper()
	own := ExpectExists(PodOf(vmi))
	pod := own.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: own.Namespace, Name: "virt-launcher-vm-x7k2p", Labels: own.Labels,
		OwnerReferences: own.OwnerReferences, Annotations: own.Annotations}
	pod.Spec.Containers[0].Command = []string{"/usr/bin/virt-launcher-monitor"}
	ExpectCreated(pod)
	return pod
}

var _ = Describe("VirtualMachineInstance reconciler, when a guest ends", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	DescribeTable("gets its final phase from its Pod",
		func(pod *builder.PodStatus, phase v1.VirtualMachineInstancePhase, reason, message string) {
			vmi := w.assigned(builder.MakeVMI("vm"))
			ReportAsAgent(vmi, Running)
			SetLauncherStatus(vmi, "", pod)
			w.Step(vmi)
			ExpectExists(vmi)
			Expect(vmi.Status.Phase).To(Equal(phase))
			Expect(vmi.Status.Reason).To(Equal(reason))
			Expect(vmi).To(HaveCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason,
				message))
			Expect(vmi.Finalizers).To(ContainElement(v1.VirtualMachineInstanceFinalizer), "it was not deleted")
			stopped := "Normal Stopped: The VirtualMachineInstance was shut down. " + reason
			if phase == v1.Failed {
				stopped = "Warning Stopped: The VirtualMachineInstance crashed. " + reason
			}
			source := " [virt-handler on " + vmi.Status.NodeName + "]"
			Expect(w.events.Take()).To(HaveExactElements("Normal Deleted: Signaled Deletion"+source,
				And(HavePrefix(stopped), HaveSuffix(source))))
			w.expectQuiet(vmi)
			ExpectExists(PodOf(vmi))
		},
		Entry("after the guest shut down",
			builder.MakePodStatus().Terminated(0, "Completed", `{"reason":"GuestShutdown","message":"The guest powered off."}`),
			v1.Succeeded, "GuestShutdown", "powered off"),
		Entry("after QEMU crashed",
			builder.MakePodStatus().Terminated(1, "Error", `{"reason":"GuestCrashed","message":"QEMU was killed by signal 9."}`),
			v1.Failed, "GuestCrashed", "signal 9"),
		Entry("after it was evicted", builder.MakePodStatus().Evicted("The node was low on resource: memory."),
			v1.Failed, "Evicted", "low on resource"),
	)

	It("has a warning of its own when the guest's kernel panicked", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		SetLauncherStatus(vmi, "",
			builder.MakePodStatus().Terminated(1, "Error", `{"reason":"GuestPanicked","message":"The guest's kernel panicked."}`))
		w.Step(vmi)
		Expect(w.events.Take()).To(HaveExactElements(
			HavePrefix("Warning GuestPanicked: The guest's kernel panicked."), HavePrefix("Normal Deleted: Signaled Deletion"),
			HavePrefix("Warning Stopped: The VirtualMachineInstance crashed. GuestPanicked")))
	})

	It("records the events of the final phase once when its first write is refused", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", `{"reason":"GracePeriodExpired","message":"killed"}`))
		w.Writes.Fail = func(string) error {
			w.Writes.Fail = nil
			return apierrors.NewConflict(v1.GroupVersion.WithResource("vmis").GroupResource(), vmi.Name, ErrInjected)
		}
		w.Step(vmi)
		Expect(w.events.Take()).To(BeEmpty())
		w.Step(vmi)
		Expect(w.events.Take()).To(HaveExactElements(HavePrefix("Normal Deleted: VirtualMachineInstance stopping"),
			HavePrefix("Normal Deleted: Signaled Deletion"),
			HavePrefix("Normal Stopped: The VirtualMachineInstance was shut down. GracePeriodExpired: killed")))
		w.expectQuiet(vmi)
	})

	It("fails when its Pod no longer exists", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal(v1.PodNotExistsReason))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning Stopped: ")))
		w.expectQuiet(vmi)
	})

	It("is left as it is while its guest runs in a Pod of another name, as KubeVirt's, and is deleted with it", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		other := podOfKubeVirt(vmi)
		Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed())
		w.events.Take()
		w.expectQuiet(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(ExpectExists(other).ResourceVersion).To(Equal(other.ResourceVersion))

		By("deleting the Pod, and waiting for it, when the VMI is deleted")
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(other).DeletionTimestamp).NotTo(BeNil())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		other.Status = builder.MakePodStatus().Terminated(0, "Completed", "").Obj()
		Expect(K8sClient.Status().Update(ctx, other)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
	})

	It("ends as its guest did in a Pod of KubeVirt", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		other := podOfKubeVirt(vmi)
		Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed())
		other.Status = builder.MakePodStatus().Terminated(0, "Completed", "").Obj()
		Expect(K8sClient.Status().Update(ctx, other)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
	})

	It("is left as it is in a Pod of KubeVirt to which it was migrated", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		other := podOfKubeVirt(vmi)
		ExpectExists(vmi)
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourcePod: "virt-launcher-vm-aaaaa",
			TargetPod: other.Name, TargetNode: vmi.Status.NodeName, SourceNode: "node-0", Completed: true}
		ExpectStatus(vmi)
		Plug(vmi, "data", "data-claim")
		w.events.Take()
		w.expectQuiet(vmi)
		Expect(ExpectExists(other).ResourceVersion).To(Equal(other.ResourceVersion))
	})

	It("fails when a Pod that only looks like its own is left", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		own := ExpectExists(PodOf(vmi))
		for name, change := range map[string]func(*corev1.Pod){
			"foreign":   func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "other" },
			"ownerless": func(pod *corev1.Pod) { pod.OwnerReferences = nil },
			"unlabeled": func(pod *corev1.Pod) { pod.Labels = nil },
			"target":    func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"/usr/bin/virt-launcher"} },
		} {
			other := own.DeepCopy()
			other.ObjectMeta = metav1.ObjectMeta{Namespace: own.Namespace, Name: name, Labels: own.Labels,
				OwnerReferences: own.OwnerReferences}
			other.Spec.Containers[0].Command = []string{"/usr/bin/virt-launcher-monitor"}
			change(other)
			ExpectCreated(other)
		}
		Expect(K8sClient.Delete(ctx, own, client.GracePeriodSeconds(0))).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
	})

	It("does not write a final phase while the guest's state is unknown", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, Running)
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) { s.Phase = v1.Unknown })
		w.expectQuiet(vmi)
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", ""))
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
	})

	Context("when it is deleted", func() {
		remove := func(vmi *v1.VirtualMachineInstance) {
			GinkgoHelper()
			Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		}

		It("is removed before it has a Pod", func() {
			vmi := w.create(builder.MakeVMI("vm").PVC("root", "missing"))
			w.Step(vmi)
			remove(vmi)
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
			w.advance(ShownFor)
			w.Step(vmi)
			ExpectGone(vmi)
		})

		It("is removed with its Pod before the Pod is assigned", func() {
			vmi := w.create(builder.MakeVMI("vm"))
			w.Step(vmi)
			remove(vmi)
			w.events.Take()
			w.Step(vmi)
			ExpectGone(PodOf(vmi)) // at once, because it was never scheduled
			Expect(w.events.Take()).To(ConsistOf(HavePrefix("Normal SuccessfulDelete: ")))
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded), "clients can read how it ended")
			w.advance(ShownFor)
			w.Step(vmi)
			ExpectGone(vmi)
		})

		It("waits for the guest's shutdown, and writes its outcome", func() {
			vmi := w.assigned(builder.MakeVMI("vm").Finalizers(v1.VirtualMachineControllerFinalizer))
			ReportAsAgent(vmi, Running)
			remove(vmi)
			w.Step(vmi)
			Expect(ExpectExists(PodOf(vmi)).DeletionTimestamp).NotTo(BeNil())
			w.events.Take()
			w.expectQuiet(vmi)
			SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", `{"reason":"GuestShutdown","message":"bye"}`))
			w.Step(vmi)
			ExpectExists(vmi)
			Expect(vmi.Status.Phase).To(Equal(v1.Succeeded))
			Expect(vmi.Finalizers).To(ContainElement(v1.VirtualMachineInstanceFinalizer), "its Pod is still there")
			w.events.Take()
			w.expectQuiet(vmi)
			Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed()) // as the kubelet would
			w.advance(ShownFor)
			w.Step(vmi)
			Expect(ExpectExists(vmi).Finalizers).To(ConsistOf(v1.VirtualMachineControllerFinalizer), "the VM's finalizer stays")
			w.expectQuiet(vmi)
		})

		It("is not removed with a stale cache without the Pod", func() {
			vmi := w.assigned(builder.MakeVMI("vm"))
			remove(vmi)
			w.Writes.Blind = func(_ client.ObjectKey, o client.Object) bool { _, pod := o.(*corev1.Pod); return pod }
			w.Step(vmi)
			Expect(ExpectExists(PodOf(vmi)).DeletionTimestamp).NotTo(BeNil())
			Expect(ExpectExists(vmi).Finalizers).To(ContainElement(v1.VirtualMachineInstanceFinalizer))
			Expect(vmi.Status.Phase).To(Equal(v1.Scheduled))
		})

		It("is removed after the guest ended before the deletion", func() {
			vmi := w.assigned(builder.MakeVMI("vm"))
			SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(1, "Error", ""))
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
			remove(vmi)
			w.events.Take()
			w.Step(vmi)
			ExpectGone(PodOf(vmi)) // at once, because it has ended
			Expect(w.events.Take()).To(ConsistOf(HavePrefix("Normal SuccessfulDelete: ")))
			w.advance(ShownFor)
			w.Step(vmi)
			ExpectGone(vmi)
		})

		It("shows its final phase for one and a half seconds, and not longer", func() {
			// The timestamp of the phase is in seconds.
			w.clock.SetTime(w.clock.Now().Truncate(time.Second).Add(900 * time.Millisecond))
			vmi := w.assigned(builder.MakeVMI("vm"))
			ReportAsAgent(vmi, Running)
			remove(vmi)
			w.Step(vmi)
			Expect(ExpectExists(PodOf(vmi)).DeletionTimestamp).NotTo(BeNil())
			Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed()) // as the kubelet would
			Expect(w.Step(vmi).RequeueAfter).To(Equal(ShownFor))
			w.advance(ShownFor - time.Millisecond)
			Expect(w.ExpectSteady(vmi).RequeueAfter).To(Equal(time.Millisecond))
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
			w.advance(time.Millisecond)
			w.Step(vmi)
			ExpectGone(vmi)
		})

		It("is not kept if its final phase was shown before the deletion, also by another process", func() {
			for _, another := range []bool{false, true} {
				vmi := w.assigned(builder.MakeVMI(fmt.Sprintf("vm-%t", another)))
				ReportAsAgent(vmi, Running)
				Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed())
				w.Step(vmi)
				Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
				w.advance(ShownFor)
				if another {
					w.Reconciler = newWorld().Reconciler
					w.Client, w.Clock, w.Of = w.Writes, w.clock, w.Reconciler
					w.advance(time.Second)
				}
				remove(vmi)
				w.Step(vmi)
				ExpectGone(vmi)
			}
		})

		It("is not removed as long as it controls a Pod", func() {
			vmi := w.assigned(builder.MakeVMI("vm"))
			stray := ExpectExists(PodOf(vmi)).DeepCopy()
			SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", ""))
			w.Step(vmi)
			Expect(K8sClient.Delete(ctx, PodOf(vmi))).To(Succeed())
			stray.Name, stray.ResourceVersion, stray.UID, stray.Finalizers = "stray", "", "", []string{"example.org/log"}
			ExpectCreated(stray)
			remove(vmi)
			w.Step(vmi)
			Expect(ExpectExists(stray).DeletionTimestamp).NotTo(BeNil())
			w.ExpectSteady(vmi)
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
			ExpectExists(stray).Finalizers = nil
			Expect(K8sClient.Update(ctx, stray)).To(Succeed())
			Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, stray, client.GracePeriodSeconds(0)))).To(Succeed())
			w.advance(ShownFor)
			w.Step(vmi)
			ExpectGone(vmi)
		})
	})
})
