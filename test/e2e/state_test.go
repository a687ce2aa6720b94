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

// withLastingState keeps the EFI variables and a TPM in a claim of the VM.
func withLastingState() option {
	return func(vm *v1.VirtualMachine) {
		withEFI()(vm)
		spec(vm).Domain.Firmware.Bootloader.EFI.Persistent = ptr.To(true)
		spec(vm).Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	}
}

// claimOf is the one claim with the state of a VM.
func claimOf(ctx context.Context, namespace, vm string) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	list := &corev1.PersistentVolumeClaimList{}
	Expect(k8s.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{v1.PersistentStateLabel: vm})).To(Succeed())
	Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}

// launcherFile is where a file of the launcher Pod is seen from outside, on this machine's node.
func launcherFile(ctx context.Context, instance *v1.VirtualMachineInstance, path string) string {
	GinkgoHelper()
	pid := processOf(ctx, instance, "virt-launcher").PID
	return filepath.Join("/proc", strconv.Itoa(pid), "root", path)
}

// swtpmLog is what swtpm and its setup said in the launcher Pod.
func swtpmLog(ctx context.Context, instance *v1.VirtualMachineInstance) string {
	GinkgoHelper()
	content, err := os.ReadFile(launcherFile(ctx, instance, launcherpod.RuntimeDir+"/cache/libvirt/qemu/log/"+
		launcherpod.DomainName(instance.Namespace, instance.Name)+"-swtpm.log"))
	Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// variables identifies the file with the EFI variables: libvirt makes a new one only where there is none.
func variables(ctx context.Context, instance *v1.VirtualMachineInstance) os.FileInfo {
	GinkgoHelper()
	info, err := os.Stat(launcherFile(ctx, instance, launcherpod.NVRAMStateFile(instance.Name)))
	Expect(err).NotTo(HaveOccurred())
	return info
}

var _ = Describe("The state of a machine", func() {
	It("lasts over stop and start, and goes with the VM", func(ctx context.Context) {
		needLocalNodes()
		namespace := newNamespace(ctx)
		machine := makeVM(namespace, "stateful", withLastingState(), withMemory("192Mi"))
		create(ctx, machine)
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
		Expect(swtpmLog(ctx, second)).NotTo(ContainSubstring("manufacturing"), "the TPM was made anew")
		Expect(os.SameFile(before, variables(ctx, second))).To(BeTrue(), "the EFI variables are others")

		Expect(k8s.Delete(ctx, machine)).To(Succeed())
		expectGone(ctx, claim)
	}, SpecTimeout(12*time.Minute))
})
