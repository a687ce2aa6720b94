// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// guestReady is what the small guest writes to its console when it has booted.
const guestReady = "VIREO-GUEST-READY"

var _ = Describe("Booting a guest", kvmLinuxLong(), func() {
	It("runs a containerDisk with cloud-init, reports it in VMI and Pod, and removes everything when the VM is deleted",
		func(ctx context.Context) {
			namespace := newNamespace(ctx)
			create(ctx, makeVM(namespace, "plain", withUserData("#!/bin/sh\necho USER-DATA-$((40+2)) >/dev/console\n")))
			instance := expectReady(ctx, namespace, "plain")
			expectConsole(ctx, namespace, "plain", bootTimeout,
				And(ContainSubstring(guestReady), ContainSubstring("USER-DATA-42")))

			pod := launcherPod(ctx, instance)
			By("keeping the guest's console and the log of virt-launcher and libvirtd apart")
			Expect(console(ctx, namespace, "plain")).NotTo(ContainSubstring(launcherpod.LogGuestRuns))
			Expect(podLog(ctx, pod, launcherpod.ComputeContainer)).To(And(ContainSubstring(launcherpod.LogGuestRuns),
				Not(ContainSubstring(guestReady)), Not(ContainSubstring("virNetSocketReadWire"))))
			Expect(instance.Status.NodeName).To(Equal(pod.Spec.NodeName))
			Expect(instance.Labels).To(HaveKeyWithValue(v1.NodeNameLabel, pod.Spec.NodeName))
			Expect(instance.Status.Interfaces).To(ContainElement(HaveField("IP", pod.Status.PodIP)))
			if _, err := os.Stat("/sys/fs/selinux"); hasLocalNodes() && err != nil {
				Expect(instance.Status.SelinuxContext).To(Equal("none"))
			}
			phases := []v1.VirtualMachineInstancePhase{}
			for _, transition := range instance.Status.PhaseTransitionTimestamps {
				phases = append(phases, transition.Phase)
			}
			Expect(phases).To(Equal([]v1.VirtualMachineInstancePhase{v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running}))
			Expect(condition(instance, v1.VirtualMachineInstanceIsMigratable)).NotTo(BeNil())

			By("removing VM, VMI and Pod after the deletion")
			vm := makeVM(namespace, "plain")
			Expect(k8s.Delete(ctx, vm)).To(Succeed())
			expectGone(ctx, vm)
			expectGone(ctx, instance)
			expectGone(ctx, pod)
		}, specTimeout(8*time.Minute))

	It("boots with EFI", extended(3), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "efi", withEFI(), withMemory("192Mi"), withUserData(
			"#!/bin/sh\n[ -d /sys/firmware/efi ] && echo BOOTED-BY-EFI >/dev/console\n")))
		expectReady(ctx, namespace, "efi")
		expectConsole(ctx, namespace, "efi", bootTimeout, ContainSubstring("BOOTED-BY-EFI"))
	}, specTimeout(8*time.Minute))

	It("boots a kernel from an image", extended(2), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "kernel", func(vm *v1.VirtualMachine) {
			spec(vm).Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
				KernelArgs: "console=ttyS0 vireo.marker=kernel-boot",
				Container: &v1.KernelBootContainer{
					Image: image("guest-small-kernel"), ImagePullPolicy: corev1.PullIfNotPresent,
					KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd.img",
				},
			}}
		}))
		expectReady(ctx, namespace, "kernel")
		expectConsole(ctx, namespace, "kernel", bootTimeout,
			And(ContainSubstring("vireo.marker=kernel-boot"), ContainSubstring(guestReady)))
	}, specTimeout(8*time.Minute))

	It("runs a VMI without a VM, which a VM of its name adopts later", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		template := makeVM(namespace, "alone").Spec.Template
		alone := &v1.VirtualMachineInstance{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		alone.Namespace, alone.Name = namespace, "alone"
		create(ctx, alone)
		expectPhase(ctx, namespace, "alone", v1.Running)
		expectConsole(ctx, namespace, "alone", bootTimeout, ContainSubstring(guestReady))

		By("adopting it with a VM of the same name")
		create(ctx, makeVM(namespace, "alone"))
		adopted := expectReady(ctx, namespace, "alone")
		Expect(adopted.UID).To(Equal(alone.UID))
		Expect(adopted.OwnerReferences).To(ContainElement(HaveField("Kind", "VirtualMachine")))
	}, specTimeout(8*time.Minute))

	It("does not run the CPUs of a VM with startStrategy Paused", extended(1), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "paused", func(vm *v1.VirtualMachine) {
			spec(vm).StartStrategy = ptr.To(v1.StartStrategyPaused)
		}))
		Eventually(func(g Gomega) {
			vm := &v1.VirtualMachine{}
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "paused"}, vm)).To(Succeed())
			g.Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusPaused))
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
		Expect(console(ctx, namespace, "paused")).NotTo(ContainSubstring(guestReady))
	}, specTimeout(8*time.Minute))
})
