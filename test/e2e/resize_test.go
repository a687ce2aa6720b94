// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// sizes prints the number of the guest's CPUs according to its ACPI tables, and its memory in MiB. A Linux that runs in
// software emulation takes itself to be on bare hardware, and then uses no CPUs that were plugged after its start.
const sizes = `#!/bin/sh
while sleep 2; do
	echo "VIREO-GUEST-SIZE $(cat /sys/bus/acpi/devices/LNXCPU:*/status | grep -cx 15) CPU $(awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo) MiB" >/dev/console
done &
`

var printedSize = regexp.MustCompile(`VIREO-GUEST-SIZE (\d+) CPU (\d+) MiB`)

var _ = Describe("A running VM", extended(3), kvmLinux(), func() {
	var namespace string
	const name = "grows"

	// seen returns what the guest printed last.
	seen := func(ctx context.Context) (cpus, mib int) {
		GinkgoHelper()
		all := printedSize.FindAllStringSubmatch(console(ctx, namespace, name), -1)
		if len(all) == 0 {
			return 0, 0
		}
		last := all[len(all)-1]
		cpus, err := strconv.Atoi(last[1])
		Expect(err).NotTo(HaveOccurred())
		mib, err = strconv.Atoi(last[2])
		Expect(err).NotTo(HaveOccurred())
		return cpus, mib
	}
	size := func(ctx context.Context, sockets int, memory string) {
		GinkgoHelper()
		kubectl(ctx, "", "patch", "-n", namespace, "vm", name, "--type=merge", "--patch", fmt.Sprintf(
			`{"spec":{"template":{"spec":{"domain":{"cpu":{"sockets":%d},"memory":{"guest":%q}}}}}}`, sockets, memory))
	}
	expectSize := func(ctx context.Context, cpus, least, most int) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			has, mib := seen(ctx)
			g.Expect(has).To(Equal(cpus))
			g.Expect(mib).To(And(BeNumerically(">=", least), BeNumerically("<=", most)))
			for _, kind := range []v1.VirtualMachineInstanceConditionType{v1.VirtualMachineInstanceVCPUChange,
				v1.VirtualMachineInstanceMemoryChange} {
				g.Expect(condition(vmi(ctx, namespace, name), kind)).To(BeNil())
			}
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	}
	compute := func(pod *corev1.Pod) corev1.ResourceList {
		for i := range pod.Spec.Containers {
			if pod.Spec.Containers[i].Name == "compute" {
				return pod.Spec.Containers[i].Resources.Requests
			}
		}
		return nil
	}

	It("gets more CPUs and memory in the same Pod, returns memory, and reports what it cannot have",
		func(ctx context.Context) {
			namespace = newNamespace(ctx)
			create(ctx, makeVM(namespace, name, withMemory("1Gi"), withUserData(sizes)))
			instance := expectReady(ctx, namespace, name)
			before := launcherPod(ctx, instance)
			expectSize(ctx, 1, 850, 1024)
			Expect(instance.Spec.Domain.CPU.MaxSockets).To(BeEquivalentTo(4))

			By("growing")
			size(ctx, 2, "1536Mi")
			expectSize(ctx, 2, 850+512, 1536)
			grown := vmi(ctx, namespace, name)
			Expect(grown.Status.CurrentCPUTopology.Sockets).To(BeEquivalentTo(2))
			Expect(grown.Status.Memory.GuestCurrent.String()).To(Equal("1536Mi"))
			after := launcherPod(ctx, grown)
			Expect(after.UID).To(Equal(before.UID))
			memory, larger := compute(before)[corev1.ResourceMemory], compute(after)[corev1.ResourceMemory]
			Expect(larger.Value() - memory.Value()).To(BeNumerically(">=", 512<<20))
			cpu, more := compute(before)[corev1.ResourceCPU], compute(after)[corev1.ResourceCPU]
			Expect(more.MilliValue()).To(Equal(2 * cpu.MilliValue()))
			Expect(after.Status.ContainerStatuses).To(
				ContainElement(And(HaveField("Name", "compute"), HaveField("RestartCount", BeEquivalentTo(0)))))

			By("returning memory")
			size(ctx, 2, "1Gi")
			expectSize(ctx, 2, 850, 1024)
			Eventually(func() int64 {
				requested := compute(launcherPod(ctx, grown))[corev1.ResourceMemory]
				return requested.Value()
			}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(BeNumerically("<", larger.Value()))

			By("asking for CPUs that it cannot have")
			size(ctx, 5, "1Gi")
			vm := &v1.VirtualMachine{}
			Eventually(func(g Gomega) {
				g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
				g.Expect(vm.Status.Conditions).To(ContainElement(And(
					HaveField("Type", v1.VirtualMachineRestartRequired),
					HaveField("Message", ContainSubstring("higher than what's available")))))
			}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
			size(ctx, 2, "1Gi")
			Eventually(func(g Gomega) {
				g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
				g.Expect(vm.Status.Conditions).NotTo(ContainElement(HaveField("Type", v1.VirtualMachineRestartRequired)))
			}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
			Expect(launcherPod(ctx, grown).UID).To(Equal(before.UID))
		}, specTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))
})
