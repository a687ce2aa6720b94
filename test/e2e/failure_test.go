// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var _ = Describe("A VM that cannot start reports the reason", func() {
	DescribeTable("in its printableStatus, its VMI's conditions and virtctl explain",
		func(ctx context.Context, change option, printable v1.VirtualMachinePrintableStatus,
			matcher gomegatypes.GomegaMatcher, explained string) {
			namespace := newNamespace(ctx)
			create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "without-userdata"},
				StringData: map[string]string{"user-data": "#!/bin/sh"},
			})
			create(ctx, makeVM(namespace, "broken", change))
			Eventually(func(g Gomega) {
				vm := &v1.VirtualMachine{}
				g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "broken"}, vm)).To(Succeed())
				g.Expect(vm.Status.PrintableStatus).To(Equal(printable))
				instance := vmi(ctx, namespace, "broken")
				g.Expect(instance).NotTo(BeNil())
				g.Expect(instance.Status.Conditions).To(ContainElement(matcher))
			}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
			Eventually(func() string { // without the line breaks of the terminal
				return strings.Join(strings.Fields(expectVirtctl(ctx, "explain", "-n", namespace, "broken")), " ")
			}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(time.Second).Should(ContainSubstring(explained))
		},
		Entry("when its claim is missing", specTimeout(5*time.Minute), withClaim("data", "nowhere"),
			v1.VirtualMachineStatusPvcNotFound,
			HaveField("Message", ContainSubstring("nowhere")),
			"! PersistentVolumeClaim nowhere, of the volume data, does not exist. What to do: Create it"),
		Entry("when its image cannot be pulled", specTimeout(5*time.Minute), withImage("localhost/vireo/no-such-image:1"),
			v1.VirtualMachineStatusImagePullBackOff,
			HaveField("Message", ContainSubstring("no-such-image")),
			"! The image localhost/vireo/no-such-image:1 cannot be pulled."),
		Entry("when no node is large enough", specTimeout(5*time.Minute), withMemory("4Ti"),
			v1.VirtualMachineStatusUnschedulable,
			And(HaveField("Type", v1.VirtualMachineInstanceConditionType(corev1.PodScheduled)),
				HaveField("Status", corev1.ConditionFalse), HaveField("Message", ContainSubstring("memory"))),
			"! No node has enough memory for the VM. - 2 nodes: too little free memory What to do: Request less memory than 4"),
		Entry("when its cloud-init Secret is missing", specTimeout(5*time.Minute), withUserDataSecret("nowhere"),
			v1.VirtualMachineStatusStarting,
			And(HaveField("Status", corev1.ConditionFalse), HaveField("Message", ContainSubstring("nowhere"))),
			`for volume "cloudinit-udata" : secret "nowhere" not found What to do: Fix what the message names`),
		Entry("when its cloud-init Secret lacks the key", extended(3), specTimeout(5*time.Minute), withUserDataSecret("without-userdata"),
			v1.VirtualMachineStatusStarting,
			And(HaveField("Type", v1.VirtualMachineInstanceSynchronized), HaveField("Status", corev1.ConditionFalse),
				HaveField("Message", ContainSubstring("userdata"))),
			`! The VM cannot be run as its spec requires: InvalidCloudInit. - volume "cloudinit": Secret "without-userdata" has neither the key "userdata" nor "userData"`),
	)
})

var _ = Describe("A guest whose processes are killed", func() {
	BeforeEach(needLocalNodes)

	DescribeTable("fails with the reason, and is restarted with run strategy Always",
		func(ctx context.Context, process string, reason gomegatypes.GomegaMatcher) {
			namespace := newNamespace(ctx)
			create(ctx, makeVM(namespace, "killed"))
			instance := expectReady(ctx, namespace, "killed")
			expectConsole(ctx, namespace, "killed", bootTimeout, ContainSubstring(guestReady))
			phases := watchPhases(ctx, instance)
			killInPod(ctx, instance, process)
			expectNewInstance(ctx, instance)
			Expect(phases()).To(ContainElement(And(HaveField("Phase", v1.Failed), HaveField("Reason", reason))))
			expectReady(ctx, namespace, "killed")
		},
		Entry("QEMU", specTimeout(8*time.Minute), "qemu-system-x86_64", Equal("GuestCrashed")),
		Entry("libvirtd", extended(2), specTimeout(8*time.Minute), "libvirtd", Equal("LibvirtFailed")),
	)

	// With version 2 of control groups, the kernel kills all processes of a container that has no memory left.
	It("fails with OOMKilled, and is restarted, when its Pod has no memory left", kvmLinux(), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "killed"))
		instance := expectReady(ctx, namespace, "killed")
		qemu := processOf(ctx, instance, "qemu-system-x86_64")
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", qemu.PID))
		Expect(err).NotTo(HaveOccurred())
		group, unified := strings.CutPrefix(strings.TrimSpace(string(groups)), "0::")
		if !unified {
			Skip("the node has control groups of version 1")
		}
		expectConsole(ctx, namespace, "killed", bootTimeout, ContainSubstring(guestReady))
		phases := watchPhases(ctx, instance)
		Expect(os.WriteFile(filepath.Join("/sys/fs/cgroup", group, "memory.max"), []byte("16M"), 0)).To(Succeed())
		expectNewInstance(ctx, instance)
		Expect(phases()).To(ContainElement(And(HaveField("Phase", v1.Failed), HaveField("Reason", "OOMKilled"))))
		expectReady(ctx, namespace, "killed")
	}, specTimeout(8*time.Minute))
})
