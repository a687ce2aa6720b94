// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// withPersistentState adds persistent EFI variables and a persistent TPM to a VM.
func withPersistentState() option {
	return func(vm *v1.VirtualMachine) {
		withEFI()(vm)
		spec(vm).Domain.Firmware.Bootloader.EFI.Persistent = ptr.To(true)
		spec(vm).Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	}
}

// claimOf returns the only claim with the state of a VM.
func claimOf(ctx context.Context, namespace, vm string) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	list := &corev1.PersistentVolumeClaimList{}
	Expect(k8s.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{v1.PersistentStateLabel: vm})).
		To(Succeed())
	Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}

// launcherFile returns the path of a launcher Pod's file on this host.
func launcherFile(ctx context.Context, instance *v1.VirtualMachineInstance, path string) string {
	GinkgoHelper()
	pid := processOf(ctx, instance, "virt-launcher").PID
	return filepath.Join("/proc", strconv.Itoa(pid), "root", path)
}

// swtpmLog returns the log of swtpm and its setup in the launcher Pod.
func swtpmLog(ctx context.Context, instance *v1.VirtualMachineInstance) string {
	GinkgoHelper()
	content, err := os.ReadFile(launcherFile(ctx, instance, launcherpod.RuntimeDir+"/cache/libvirt/qemu/log/"+
		launcherpod.DomainName(instance.Namespace, instance.Name)+"-swtpm.log"))
	Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// variables returns the identity of the file with the EFI variables: libvirt creates one only if there is none.
func variables(ctx context.Context, instance *v1.VirtualMachineInstance) os.FileInfo {
	GinkgoHelper()
	info, err := os.Stat(launcherFile(ctx, instance, launcherpod.NVRAMStateFile(instance.Name)))
	Expect(err).NotTo(HaveOccurred())
	return info
}

// expectStateMigrates migrates a guest, and checks that all its state is on another claim. It returns the VMI
// afterwards.
func expectStateMigrates(ctx context.Context, instance *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	GinkgoHelper()
	source := claimOf(ctx, instance.Namespace, instance.Name)
	file := launcherpod.NVRAMStateFile(instance.Name)
	sent, err := os.ReadFile(launcherFile(ctx, instance, file))
	Expect(err).NotTo(HaveOccurred())
	Eventually(func() *v1.VirtualMachineInstanceCondition {
		return condition(vmi(ctx, instance.Namespace, instance.Name), v1.VirtualMachineInstanceIsMigratable)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(HaveField("Status", corev1.ConditionTrue))

	expectVirtctl(ctx, "migrate", "-n", instance.Namespace, instance.Name)
	var now *v1.VirtualMachineInstance
	Eventually(func(g Gomega) {
		now = vmi(ctx, instance.Namespace, instance.Name)
		g.Expect(now.Status.NodeName).NotTo(Equal(instance.Status.NodeName), "%+v", now.Status.MigrationState)
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	expectGone(ctx, source)
	target := claimOf(ctx, instance.Namespace, instance.Name)
	Expect(now.UID).To(Equal(instance.UID))
	Expect(now.Status.MigrationState).To(And(
		HaveField("SourcePersistentStatePVCName", source.Name), HaveField("TargetPersistentStatePVCName", target.Name)))
	Expect(now.Status.VolumeStatus).To(ContainElement(HaveField("Name", target.Name)))
	got, err := os.ReadFile(launcherFile(ctx, now, file))
	Expect(err).NotTo(HaveOccurred())
	Expect(got).To(Equal(sent), "the EFI variables were not kept")
	return now
}

var _ = Describe("Persistent EFI variables and TPM", extended(3), kvmLinuxLong(), func() {
	It("are kept across a restart and a migration, and deleted with the VM", func(ctx context.Context) {
		needLocalNodes()
		namespace := newNamespace(ctx)
		vm := makeVM(namespace, "stateful", withPersistentState(), withMemory("192Mi"),
			withUserData("#!/bin/sh\necho THE-FIRMWARE-IS-DONE >/dev/console\n"))
		create(ctx, vm)
		first := expectReady(ctx, namespace, "stateful")
		claim := claimOf(ctx, namespace, "stateful")
		Expect(first.Status.VolumeStatus).To(ContainElement(HaveField("Name", claim.Name)))
		Expect(swtpmLog(ctx, first)).To(ContainSubstring("Successfully authored TPM state"))
		before := variables(ctx, first)

		setRunStrategy(ctx, namespace, "stateful", v1.RunStrategyHalted)
		expectGone(ctx, first)
		setRunStrategy(ctx, namespace, "stateful", v1.RunStrategyAlways)
		second := expectReady(ctx, namespace, "stateful")
		Expect(claimOf(ctx, namespace, "stateful").UID).To(Equal(claim.UID))
		Expect(swtpmLog(ctx, second)).NotTo(ContainSubstring("manufacturing"), "a new TPM was created")
		Expect(os.SameFile(before, variables(ctx, second))).To(BeTrue(), "the EFI variables were not kept")

		if len(nodes(ctx)) > 1 {
			// Until this output, the firmware writes variables.
			expectConsole(ctx, namespace, "stateful", bootTimeout, ContainSubstring("THE-FIRMWARE-IS-DONE"))
			expectStateMigrates(ctx, second)
			claim = claimOf(ctx, namespace, "stateful")
			expectVirtctl(ctx, "restart", "-n", namespace, "stateful")
			expectNewInstance(ctx, second)
			Expect(swtpmLog(ctx, expectReady(ctx, namespace, "stateful"))).
				NotTo(ContainSubstring("manufacturing"), "a new TPM was created after the migration")
			Expect(claimOf(ctx, namespace, "stateful").UID).To(Equal(claim.UID))
		}

		Expect(k8s.Delete(ctx, vm)).To(Succeed())
		expectGone(ctx, claim)
	}, specTimeout(12*time.Minute))
})
