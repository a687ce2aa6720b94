// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance with a Pod that the kubelet refused", func() {
	const (
		reason  = "UnexpectedAdmissionError"
		message = "Allocate failed due to no device plugin, which is unexpected"
	)
	var (
		w   *world
		vmi *v1.VirtualMachineInstance
		// first is the refused Pod.
		first *corev1.Pod
	)
	BeforeEach(func() {
		w = newWorld()
		vmi = w.create(builder.MakeVMI("vm"))
		w.Step(vmi)
		w.events.Take()
	})
	refuse := func() ctrl.Result {
		GinkgoHelper()
		first = SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Refused(reason, message))
		w.clock.SetTime(first.CreationTimestamp.Time)
		result := w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Pending))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, reason, message))
		Expect(w.events.Take()).To(ConsistOf(And(HavePrefix("Warning "+reason+": "), ContainSubstring("created again"))))
		return result
	}

	It("gets another Pod after a delay, and is assigned", func() {
		pause := refuse().RequeueAfter
		Expect(pause).To(BeNumerically(">", 0))
		w.expectQuiet(vmi)

		w.advance(pause)
		w.Step(vmi)
		Expect(w.events.Take()).To(
			ConsistOf(HavePrefix("Normal SuccessfulDelete: "), HavePrefix("Normal SuccessfulCreate: ")))
		Expect(ExpectExists(PodOf(vmi)).UID).NotTo(Equal(first.UID))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduling))
		Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
		w.expectQuiet(vmi)

		w.assign(vmi, "node-1")
	})

	It("reports that it has no Pod before it deletes the one in its status", func() {
		w.advance(10 * time.Second)
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduling))
		SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Refused(reason, message))
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Pending))
		ExpectExists(PodOf(vmi))

		By("creating the next Pod after the controller stopped between the two Pods")
		w.Writes.Fail = func(request string) error {
			if request == "create Pod" {
				return ErrInjected
			}
			return nil
		}
		_, err := w.Try(vmi)
		Expect(err).To(HaveOccurred())
		ExpectGone(PodOf(vmi))
		w.Writes.Fail = nil
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduling))
	})

	It("doubles the delay", func() {
		ago := func(d time.Duration) time.Duration {
			ExpectExists(vmi)
			for i := range vmi.Status.PhaseTransitionTimestamps {
				if stamp := &vmi.Status.PhaseTransitionTimestamps[i]; stamp.Phase == v1.Scheduling {
					stamp.PhaseTransitionTimestamp = metav1.NewTime(first.CreationTimestamp.Add(-d))
				}
			}
			ExpectStatus(vmi)
			return w.ExpectSteady(ExpectExists(vmi)).RequeueAfter
		}
		refuse()
		Expect(ago(0)).To(Equal(2 * time.Second))
		Expect(ago(20 * time.Second)).To(Equal(20 * time.Second))
		Expect(ago(time.Hour)).To(Equal(time.Minute))
	})

	It("waits until a refused Pod with a finalizer is gone", func() {
		pause := refuse().RequeueAfter
		controllerutil.AddFinalizer(first, "example.com/hold")
		Expect(K8sClient.Update(ctx, first)).To(Succeed())
		w.advance(pause)
		w.Step(vmi)
		Expect(ExpectExists(first).DeletionTimestamp).NotTo(BeNil())
		w.Step(vmi)
		w.events.Take()
		w.expectQuiet(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Pending))

		first.Finalizers = nil
		Expect(K8sClient.Update(ctx, first)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(PodOf(vmi)).UID).NotTo(Equal(first.UID))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduling))
	})

	It("does not delete the next Pod with a stale cache that contains the refused one", func() {
		pause := refuse().RequeueAfter
		w.advance(pause)
		w.Step(vmi)
		next := ExpectExists(PodOf(vmi)).UID
		Expect(next).NotTo(Equal(first.UID))
		ExpectExists(vmi)
		w.Writes.Stale = first
		w.Step(vmi)
		Expect(ExpectExists(PodOf(vmi)).UID).To(Equal(next))
		Expect(ExpectExists(vmi).Status.Phase).NotTo(Equal(v1.Failed))
	})

	It("fails with its Pod if the Pod was assigned", func() {
		w.assign(vmi, "node-1")
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Refused(reason, message))
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal(reason))
	})

	It("is removed with its Pod when it is deleted", func() {
		refuse()
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		for range 2 {
			w.Step(vmi)
			w.advance(ShownFor)
		}
		ExpectGone(PodOf(vmi))
		ExpectGone(vmi)
	})
})
