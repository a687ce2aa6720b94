// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VMI with other CPUs or memory", func() {
	var (
		w    *world
		host *corev1.Node
	)
	BeforeEach(func() {
		w = newWorld()
		// The API server checks which features the kubelet of the Pod's node has.
		host = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		Expect(K8sClient.Create(ctx, host)).To(Succeed())
		host.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("16Gi")}
		Expect(K8sClient.Status().Update(ctx, host)).To(Succeed())
		DeferCleanup(func() { Expect(K8sClient.Delete(ctx, host)).To(Succeed()) })
	})

	// runs starts a guest with one socket and 1 GiB.
	runs := func(b *builder.VMI) *v1.VirtualMachineInstance {
		GinkgoHelper()
		vmi := w.assigned(b.CPU(1, 1, 1).Guest("1Gi").With(Growable))
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			Running(s)
			Resized(1, "1Gi")(s)
		})
		w.expectQuiet(vmi)
		return ExpectExists(vmi)
	}
	// wants changes the spec, as the VM's reconciler does.
	wants := func(vmi *v1.VirtualMachineInstance, sockets uint32, memory string) {
		GinkgoHelper()
		ExpectExists(vmi)
		vmi.Spec.Domain.CPU.Sockets, vmi.Spec.Domain.Memory.Guest = sockets, ptr.To(resource.MustParse(memory))
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
	}
	has := func(vmi *v1.VirtualMachineInstance, sockets uint32, memory string) {
		GinkgoHelper()
		ReportAsAgent(ExpectExists(vmi), Resized(sockets, memory))
	}
	// kubelet reports a state of the resize, or none.
	kubelet := func(vmi *v1.VirtualMachineInstance, kind corev1.PodConditionType, reason, message string,
		since time.Time) {
		GinkgoHelper()
		status := builder.MakePodStatus().Running().Obj()
		pod := ExpectExists(PodOf(vmi))
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.VirtualMachineUnpaused {
				status.Conditions = append(status.Conditions, c)
			}
		}
		if kind != "" {
			status.Conditions = append(status.Conditions, corev1.PodCondition{
				Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
				LastTransitionTime: metav1.NewTime(since),
			})
		}
		status.QOSClass = pod.Status.QOSClass
		pod.Status = status
		Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
	}
	requests := func(vmi *v1.VirtualMachineInstance) (cpu string, memoryMiB int64) {
		GinkgoHelper()
		list := ExpectExists(PodOf(vmi)).Spec.Containers[0].Resources.Requests
		return list.Cpu().String(), list.Memory().Value() >> 20
	}
	const cpus, memory = v1.VirtualMachineInstanceVCPUChange, v1.VirtualMachineInstanceMemoryChange

	It("resizes its Pod in place before the guest grows, and after it has shrunk", func() {
		vmi := runs(builder.MakeVMI("vm"))
		_, before := requests(vmi)
		Expect(ExpectExists(PodOf(vmi)).Annotations).To(
			And(HaveKeyWithValue(resize.SocketsAnnotation, "1"), HaveKeyWithValue(resize.MemoryAnnotation, "1073741824")))

		wants(vmi, 3, "2Gi")
		// The agent grows the guest to the size in the Pod's annotations: before that, the Pod has to have the resources.
		w.ExpectOrder(vmi, "patch Pod/resize", "patch Pod", "patch VirtualMachineInstance/status")
		cpu, grown := requests(vmi)
		Expect(cpu).To(Equal("300m"))
		// The page tables for 1 GiB take 2 MiB, and a vCPU 3 MiB.
		Expect(grown - before).To(BeEquivalentTo(1024 + 2 + 2*3))
		pod := ExpectExists(PodOf(vmi))
		Expect(pod.Annotations).To(
			And(HaveKeyWithValue(resize.SocketsAnnotation, "3"), HaveKeyWithValue(resize.MemoryAnnotation, "2147483648")))
		Expect(ExpectExists(vmi)).To(
			And(HaveCondition(cpus, corev1.ConditionTrue, "", ""), HaveCondition(memory, corev1.ConditionTrue, "", "")))
		w.expectQuiet(vmi)

		has(vmi, 3, "1536Mi")
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(And(HaveNoCondition(cpus), HaveCondition(memory, corev1.ConditionTrue, "", "")))
		ReportAsAgent(ExpectExists(vmi),
			func(s *v1.VirtualMachineInstanceStatus) { s.Memory.GuestRequested = ptr.To(resource.MustParse("2Gi")) })
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(memory, corev1.ConditionTrue, resize.ReasonGuest, "virtio_mem"))
		has(vmi, 3, "2Gi")
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(And(HaveNoCondition(cpus), HaveNoCondition(memory)))
		w.expectQuiet(vmi)

		By("taking memory back")
		wants(vmi, 3, "1Gi")
		w.Step(vmi)
		_, kept := requests(vmi)
		Expect(kept).To(Equal(grown), "the guest has the memory")
		has(vmi, 3, "1Gi")
		w.Step(vmi)
		_, shrunk := requests(vmi)
		Expect(shrunk).To(Equal(before + 6))
		Expect(ExpectExists(vmi)).To(HaveNoCondition(memory))
		w.expectQuiet(vmi)
	})

	It("keeps the Pod's class, and what the namespace has added to it", func() {
		guaranteed := runs(builder.MakeVMI("a").Request(corev1.ResourceCPU, "1").Limit(corev1.ResourceCPU, "1").
			Request(corev1.ResourceMemory, "1Gi").Limit(corev1.ResourceMemory, "1Gi"))
		Expect(ExpectExists(PodOf(guaranteed)).Status.QOSClass).To(Equal(corev1.PodQOSGuaranteed))
		ExpectExists(guaranteed)
		for _, list := range []corev1.ResourceList{guaranteed.Spec.Domain.Resources.Requests,
			guaranteed.Spec.Domain.Resources.Limits} {
			list[corev1.ResourceCPU] = resource.MustParse("2")
		}
		Expect(K8sClient.Update(ctx, guaranteed)).To(Succeed())
		wants(guaranteed, 2, "1Gi")
		w.Step(guaranteed)
		pod := ExpectExists(PodOf(guaranteed))
		Expect(pod.Status.QOSClass).To(Equal(corev1.PodQOSGuaranteed))
		Expect(pod.Spec.Containers[0].Resources.Limits.Cpu().String()).To(Equal("2"))

		ExpectCreated(&corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "defaults"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
				Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")},
			}}},
		})
		limited := runs(builder.MakeVMI("b"))
		wants(limited, 1, "2Gi")
		w.Step(limited)
		Expect(ExpectExists(PodOf(limited)).Spec.Containers[0].Resources.Limits.Memory().Value()).
			To(BeEquivalentTo(3<<30 + 2<<20))

		By("not exceeding what the namespace allows")
		has(limited, 1, "2Gi")
		w.Step(limited)
		wants(limited, 1, "4Gi")
		result := w.Step(limited)
		Expect(result).NotTo(BeZero())
		Expect(ExpectExists(limited)).To(
			HaveCondition(memory, corev1.ConditionTrue, resize.ReasonForbidden, "maximum memory usage per Container is 4Gi"))
		Expect(ExpectExists(PodOf(limited)).Annotations).To(HaveKeyWithValue(resize.MemoryAnnotation, "2147483648"))
		reported := limited.ResourceVersion
		Expect(w.Step(limited)).NotTo(BeZero(), "it is tried again")
		Expect(ExpectExists(limited).ResourceVersion).To(Equal(reported))

		By("taking the change back")
		wants(limited, 1, "2Gi")
		w.Step(limited)
		Expect(ExpectExists(limited)).To(HaveNoCondition(memory))
	})

	It("reports what the kubelet says, and returns what a change that was taken back does not need", func() {
		vmi := runs(builder.MakeVMI("vm"))
		cpuBefore, memoryBefore := requests(vmi)
		wants(vmi, 2, "1Gi")
		w.Step(vmi)
		cpuGrown, _ := requests(vmi)
		Expect(cpuGrown).NotTo(Equal(cpuBefore))
		since := w.clock.Now()
		kubelet(vmi, corev1.PodResizePending, corev1.PodReasonDeferred, "Node didn't have enough resource: cpu", since)
		result := w.Step(vmi)
		Expect(result.RequeueAfter).To(BeNumerically("~", resize.Patience, 2*time.Second))
		Expect(ExpectExists(vmi)).To(
			HaveCondition(cpus, corev1.ConditionTrue, resize.ReasonDeferred, "Node didn't have enough resource: cpu"))
		w.ExpectSteady(vmi)

		By("giving up after some time, because it cannot migrate")
		ReportAsAgent(vmi, WithCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse,
			"DisksNotLiveMigratable", "cannot migrate VMI: its disk is local"))
		w.advance(resize.Patience + time.Second)
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			And(HaveCondition(cpus, corev1.ConditionFalse, resize.ReasonRestart, "its disk is local"),
				HaveNoCondition(v1.VirtualMachineInstanceMigrationRequired)))

		wants(vmi, 1, "1Gi")
		w.Step(vmi)
		cpu, memory := requests(vmi)
		Expect(cpu).To(Equal(cpuBefore))
		Expect(memory).To(Equal(memoryBefore))
		Expect(ExpectExists(vmi)).To(HaveNoCondition(cpus))
		kubelet(vmi, "", "", "", since)
		w.expectQuiet(vmi)
	})

	It("migrates a guest that needs another Pod, if the cluster's configuration allows it", func() {
		config := w.Config.Current()
		config.MigratesWorkloads = true
		w.Config = FixedConfig{Config: config}
		vmi := runs(builder.MakeVMI("vm"))
		ReportAsAgent(vmi, WithCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", ""))
		wants(vmi, 2, "1Gi")
		w.Step(vmi)
		kubelet(vmi, corev1.PodResizePending, corev1.PodReasonInfeasible, "Node didn't have enough capacity: cpu",
			w.clock.Now())
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(And(
			HaveCondition(cpus, corev1.ConditionTrue, resize.ReasonMigration, "Node didn't have enough capacity: cpu"),
			HaveCondition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionTrue, "AutoMigrationDueToLiveUpdate",
				"Node didn't have enough capacity: cpu"),
		))
		w.expectQuiet(vmi)

		By("not needing it any more")
		kubelet(vmi, "", "", "", w.clock.Now())
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			And(HaveCondition(cpus, corev1.ConditionTrue, "", ""), HaveNoCondition(v1.VirtualMachineInstanceMigrationRequired)))
	})

	It("needs another node if the whole node is too small", func() {
		vmi := runs(builder.MakeVMI("vm"))
		host.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("150m")
		Expect(K8sClient.Status().Update(ctx, host)).To(Succeed())
		wants(vmi, 2, "1Gi")
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(cpus, corev1.ConditionFalse, resize.ReasonRestart, "enough allocatable resources: cpu"))
	})

	It("does not resize Pods whose CPUs are dedicated", func() {
		vmi := runs(builder.MakeVMI("vm").With(
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true} }))
		before := ExpectExists(PodOf(vmi)).ResourceVersion
		wants(vmi, 2, "1Gi")
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(cpus, corev1.ConditionFalse, resize.ReasonRestart, "dedicated CPUs"))
		Expect(ExpectExists(PodOf(vmi)).ResourceVersion).To(Equal(before))
		w.expectQuiet(vmi)
	})

	It("leaves the Pods of a guest that migrates as they are", func() {
		vmi := runs(builder.MakeVMI("vm"))
		ExpectExists(vmi).Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m",
			SourceNode: "node-1"}
		ExpectStatus(vmi)
		wants(vmi, 2, "1Gi")
		w.Step(vmi)
		Expect(ExpectExists(PodOf(vmi)).Annotations).To(HaveKeyWithValue(resize.SocketsAnnotation, "1"))
	})
})
