// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// growable lets a guest have up to 4 sockets of 2 cores and 4 GiB. It starts with one socket and 1 GiB.
func growable(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 2, Threads: 1, MaxSockets: 4}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi")),
		MaxGuest: ptr.To(resource.MustParse("4Gi"))}
}

// want changes the size in the spec, as virt-controller does.
func (g *guest) want(sockets uint32, memory string) {
	GinkgoHelper()
	vmi := g.read()
	before := vmi.DeepCopy()
	vmi.Spec.Domain.CPU.Sockets, vmi.Spec.Domain.Memory.Guest = sockets, ptr.To(resource.MustParse(memory))
	Expect(api.Patch(ctx, vmi, client.MergeFrom(before))).To(Succeed())
}

// resizePod does what virt-controller and the kubelet do for a guest of a size.
func (g *guest) resizePod(sockets uint32, bytes int64) {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Expect(api.Get(ctx, client.ObjectKeyFromObject(g.pod), pod)).To(Succeed())
	before := pod.DeepCopy()
	resize.Annotate(pod.Annotations, resize.Size{Sockets: sockets, Memory: bytes})
	Expect(api.Patch(ctx, pod, client.MergeFrom(before))).To(Succeed())
}

// kubelet reports a container that runs, and conditions about its resources.
func (g *guest) kubelet(conditions ...corev1.PodCondition) {
	GinkgoHelper()
	Eventually(func() error {
		pod := &corev1.Pod{}
		if err := api.Get(ctx, client.ObjectKeyFromObject(g.pod), pod); err != nil {
			return err
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: launcherpod.ComputeContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
		pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions,
			func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending })
		pod.Status.Conditions = append(pod.Status.Conditions, conditions...)
		return api.Status().Update(ctx, pod)
	}).Should(Succeed())
}

// reported is the size in the status: sockets, memory at boot, current and requested.
func (g *guest) reported() string {
	status := g.read().Status
	if status.CurrentCPUTopology == nil || status.Memory == nil {
		return ""
	}
	return fmt.Sprint(status.CurrentCPUTopology.Sockets, status.Memory.GuestAtBoot, status.Memory.GuestCurrent,
		status.Memory.GuestRequested)
}

var _ = Describe("The agent and a guest of another size", func() {
	const gib = 1 << 30
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})
	started := func() *guest {
		GinkgoHelper()
		g := makeGuest(growable).schedule(launchers)
		g.resizePod(1, gib)
		g.kubelet()
		g.assign().expectPhase(v1.Running)
		Eventually(g.reported).Should(Equal("1 1Gi 1Gi 1Gi"))
		return g
	}
	vcpus := func(g *guest) uint { return g.launcher.Snapshot().XML.VCPU.Current }

	It("plugs CPUs and memory once its Pod has the resources for them", func() {
		g := started()
		Expect(vcpus(g)).To(BeEquivalentTo(2))
		g.want(3, "3Gi")
		g.settle()
		Expect(g.reported()).To(Equal("1 1Gi 1Gi 1Gi"))

		By("waiting for the kubelet")
		g.kubelet(corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			Reason: corev1.PodReasonDeferred})
		g.resizePod(3, 3*gib)
		g.settle()
		Expect(vcpus(g)).To(BeEquivalentTo(2))
		g.kubelet()
		Eventually(g.reported).Should(Equal("3 1Gi 3Gi 3Gi"))
		Expect(vcpus(g)).To(BeEquivalentTo(6))
		g.settle()
		writes := a.writes.Load()
		g.settle()
		Expect(a.writes.Load()).To(Equal(writes))

		By("returning memory at once, and a part as it can")
		g.launcher.HoldMemory()
		g.want(3, "1Gi")
		Eventually(g.reported).Should(Equal("3 1Gi 3Gi 1Gi"))
		g.launcher.PlugMemory(gib / 2)
		Eventually(g.reported).Should(Equal("3 1Gi 1536Mi 1Gi"))
		g.launcher.PlugMemory(0)
		Eventually(g.reported).Should(Equal("3 1Gi 1Gi 1Gi"))
	})

	It("does so for a guest that another agent has started, and does not lower the number of CPUs", func() {
		g := started()
		a.stop()
		g.want(2, "2Gi")
		g.resizePod(2, 2*gib)
		a = startAgent(launchers)
		Eventually(g.reported).Should(Equal("2 1Gi 2Gi 2Gi"))
		g.want(1, "2Gi")
		g.settle()
		Expect(vcpus(g)).To(BeEquivalentTo(4))
	})

	It("reports that libvirt refuses, and retries with a delay", func() {
		g := started()
		g.launcher.Fail("vcpus", errors.New("unable to plug"))
		g.want(2, "1Gi")
		g.resizePod(2, gib)
		failed := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, devices.ReasonHotPlugCPU)
		Expect(failed.Message).To(ContainSubstring("unable to plug"))
		Expect(g.read().Status.Phase).To(Equal(v1.Running))
		Expect(vmistatus.IsConditionTrue(&g.read().Status, v1.VirtualMachineInstanceReady)).To(BeTrue())
		g.launcher.Fail("vcpus", nil)
		a.ahead.Store(int64(10 * time.Minute))
		g.settle()
		g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		Expect(vcpus(g)).To(BeEquivalentTo(4))

		g.launcher.Fail("memory", errors.New("no slot"))
		g.want(2, "2Gi")
		g.resizePod(2, 2*gib)
		g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, devices.ReasonHotPlugMemory)
	})

	It("requires a restart of a guest that an earlier version has started without room", func() {
		g := makeGuest(growable,
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Memory.MaxGuest = vmi.Spec.Domain.Memory.Guest }).schedule(
			launchers)
		g.kubelet()
		g.assign().expectPhase(v1.Running)
		vmi := g.read()
		before := vmi.DeepCopy()
		vmi.Spec.Domain.Memory.MaxGuest = ptr.To(resource.MustParse("4Gi"))
		Expect(api.Patch(ctx, vmi, client.MergeFrom(before))).To(Succeed())
		g.want(1, "2Gi")
		failed := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, devices.ReasonHotPlugMemory)
		Expect(failed.Message).To(ContainSubstring("restart the VM"))
	})
})
