// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/bareguest"
)

// kvmMigrations is the number of migrations of each mode under KVM.
var kvmMigrations = numberOr("VIREO_E2E_KVM_MOVES", 3)

// hardwareKVM matches what /proc/cpuinfo has about a processor with hardware virtualization.
var hardwareKVM = regexp.MustCompile(`\b(vmx|svm)\b`)

// qemuRefused matches a message of QEMU with its time.
var qemuRefused = regexp.MustCompile(`\S+Z qemu-system-x86_64: error: failed to set MSR`)

// kvmResource is the resource of nodes with KVM.
const kvmResource = corev1.ResourceName("devices.kubevirt.io/kvm")

// Guests under KVM. Linux does not boot under a KVM without hardware support, which interprets a guest's instructions:
// these are guests without an operating system. The specs are Serial because no other guest can start meanwhile.
var _ = Describe("A guest under KVM", Label("kvm"), Ordered, Serial, ContinueOnFailure, func() {
	var g kvmGuest
	BeforeAll(func(ctx context.Context) {
		needKVM()
		useKVM(ctx)
		// The container runtime gives each Pod a device of its own, whose owner is QEMU's user.
		setKVMMode(0o600)
		g.start(ctx)
	}, nodeTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, g.namespace) }, nodeTimeout(time.Minute))

	It("runs in QEMU with the accelerator kvm, and uses the device without being root", func(ctx context.Context) {
		qemu := processOf(ctx, g.instance, "qemu-system-x86_64")
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", qemu.PID))
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Split(string(command), "\x00")).To(ContainElements("-accel", "kvm"))
		Expect(statusOf(qemu.PID)["Uid"]).To(HavePrefix("107\t"))
		Expect(bareguest.Last(g.consoles.text())).To(And(HaveField("Clock", "kvmclock"), HaveField("CPUs", uint32(1))))
	}, specTimeout(2*time.Minute))

	It("reads its console", func(ctx context.Context) {
		at := startVirtctl(ctx, "console", "-n", g.namespace, g.name)
		expectOutput(ctx, at.Err, "Successfully connected to "+g.name+" console")
		at.press("KVM-CONSOLE")
		expectOutput(ctx, at.Out, "KVM-CONSOLE")
		at.press("\x1d")
	}, specTimeout(2*time.Minute))

	It("stops counting while it is paused, and counts on", func(ctx context.Context) {
		expectVirtctl(ctx, "pause", "vm", "-n", g.namespace, g.name)
		expectPrintable(ctx, g.namespace, g.name, v1.VirtualMachineStatusPaused)
		// What was on its way to the log arrives first.
		var before uint32
		Eventually(func() bool {
			last := bareguest.Last(g.consoles.text()).Ticks
			same := last == before
			before = last
			return same
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(2 * time.Second).Should(BeTrue())
		Consistently(g.counted).WithTimeout(5 * time.Second).WithPolling(pollInterval).Should(Equal(before))
		expectVirtctl(ctx, "unpause", "vm", "-n", g.namespace, g.name)
		expectReady(ctx, g.namespace, g.name)
		g.expectCounts(ctx)
	}, specTimeout(4*time.Minute))

	It("finds a CPU that is plugged", func(ctx context.Context) {
		kubectl(ctx, "", "patch", "-n", g.namespace, "vm", g.name, "--type=merge", "--patch",
			`{"spec":{"template":{"spec":{"domain":{"cpu":{"sockets":2}}}}}}`)
		Eventually(func() uint32 { return bareguest.Last(g.consoles.text()).CPUs }).WithContext(ctx).
			WithTimeout(bootTimeout).WithPolling(pollInterval).Should(BeEquivalentTo(2))
		Eventually(func(gg Gomega) {
			now := vmi(ctx, g.namespace, g.name)
			gg.Expect(now.Status.CurrentCPUTopology).To(HaveField("Sockets", BeEquivalentTo(2)))
			gg.Expect(condition(now, v1.VirtualMachineInstanceVCPUChange)).To(BeNil())
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
		expectSameGuest(ctx, g.instance)
	}, specTimeout(6*time.Minute))

	It("keeps a hotplugged disk", func(ctx context.Context) {
		create(ctx, sharedClaim(g.namespace, "block", corev1.PersistentVolumeBlock))
		expectVirtctl(ctx, "addvolume", g.name, "--namespace", g.namespace, "--volume-name", "block")
		Eventually(func() []v1.VolumeStatus { return vmi(ctx, g.namespace, g.name).Status.VolumeStatus }).
			WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(ContainElement(And(
			HaveField("Name", "block"), HaveField("Phase", v1.VolumeReady), HaveField("Target", Not(BeEmpty())))))
		g.expectCounts(ctx)
	}, specTimeout(6*time.Minute))

	It("dumps its memory while it counts", func(ctx context.Context) {
		expectVirtctl(ctx, "memory-dump", "get", "-n", g.namespace, g.name, "--claim-name=memory", "--create-claim")
		Eventually(readVM).WithArguments(ctx, g.namespace, g.name).WithContext(ctx).WithTimeout(bootTimeout).
			WithPolling(pollInterval).Should(
			HaveField("Status.MemoryDumpRequest", HaveValue(HaveField("Phase", v1.MemoryDumpCompleted))))
		expectVirtctl(ctx, "memory-dump", "remove", "-n", g.namespace, g.name)
		Eventually(readVM).WithArguments(ctx, g.namespace, g.name).WithContext(ctx).WithTimeout(shortTimeout).
			WithPolling(pollInterval).Should(HaveField("Status.MemoryDumpRequest", BeNil()))
		g.expectCounts(ctx)
	}, specTimeout(6*time.Minute))

	DescribeTable("migrates without losing its memory or its count",
		func(ctx context.Context, mode v1.MigrationMode, times int) {
			if len(nodes(ctx)) < 2 {
				Skip("migrations need two nodes")
			}
			if mode == v1.MigrationPostCopy {
				needPostCopy()
				// The guest writes more than this.
				g.limit(ctx, "1Mi", func(p *migrationsv1alpha1.MigrationPolicySpec) {
					p.AllowPostCopy, p.CompletionTimeoutPerGiB = ptr.To(true), ptr.To[int64](3)
				})
			}
			g.mode = mode
			for range times {
				g.expectMigration(ctx, g.migrate)
				g.expectCounts(ctx)
			}
			g.expectConsistent()
		},
		Entry("by pre-copy", v1.MigrationPreCopy, kvmMigrations,
			specTimeout(4*time.Minute+time.Duration(kvmMigrations)*time.Minute)),
		Entry("by post-copy", v1.MigrationPostCopy, kvmMigrations,
			specTimeout(4*time.Minute+time.Duration(kvmMigrations)*time.Minute)),
		Entry("20 times by pre-copy", extended(1), v1.MigrationPreCopy, 20, specTimeout(20*time.Minute)),
		Entry("20 times by post-copy", extended(3), v1.MigrationPostCopy, 20, specTimeout(20*time.Minute)))

	DescribeTable("keeps running when a process is killed", func(ctx context.Context, component string) {
		node := vmi(ctx, g.namespace, g.name).Status.NodeName
		qemu := processOf(ctx, vmi(ctx, g.namespace, g.name), "qemu-system-x86_64")
		killComponent(ctx, component, node)
		g.expectCounts(ctx)
		Expect(processOf(ctx, vmi(ctx, g.namespace, g.name), "qemu-system-x86_64")).To(Equal(qemu))
		g.expectConsistent()
	},
		Entry("of the agent", extended(2), specTimeout(5*time.Minute), "virt-handler"),
		Entry("of the brokers", extended(2), specTimeout(5*time.Minute), "virt-broker"))

	It("is paused after an internal error of QEMU, and runs again after a reset", func(ctx context.Context) {
		g.expectConsistent()
		at := startVirtctl(ctx, "console", "-n", g.namespace, g.name)
		expectOutput(ctx, at.Err, "Successfully connected to "+g.name+" console")
		at.press(bareguest.KeyInternalError)
		expectPrintable(ctx, g.namespace, g.name, v1.VirtualMachineStatusPaused)
		paused := vmi(ctx, g.namespace, g.name)
		Expect(condition(paused, v1.VirtualMachineInstancePaused)).To(And(
			HaveField("Status", corev1.ConditionTrue), HaveField("Reason", v1.PausedUnknownReason)))
		Expect(condition(paused, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionFalse))
		explained, _ := runVirtctl(ctx, "explain", "-n", g.namespace, g.name)
		Expect(explained).To(ContainSubstring("reset it"))

		expectVirtctl(ctx, "reset", "-n", g.namespace, g.name)
		expectReady(ctx, g.namespace, g.name)
		Eventually(func() string { return g.consoles.text() }).WithContext(ctx).WithTimeout(bootTimeout).
			WithPolling(pollInterval).Should(WithTransform(reportsAfterReset, Not(BeEmpty())))
		expectSameGuest(ctx, g.instance)
	}, specTimeout(6*time.Minute))

	It("is not scheduled to a node without KVM until the node has it", func(ctx context.Context) {
		all := nodes(ctx)
		if len(all) < 2 {
			Skip("this needs two nodes")
		}
		namespace, without := newNamespace(ctx), all[1]
		restoreKVM := removeKVM(ctx, without)
		create(ctx, makeBareVM(namespace, "there", withNode(without)), makeBareVM(namespace, "anywhere"))
		expectPrintable(ctx, namespace, "there", v1.VirtualMachineStatusUnschedulable)
		explained, _ := runVirtctl(ctx, "explain", "-n", namespace, "there")
		Expect(explained).To(ContainSubstring("no KVM"))
		Expect(expectReady(ctx, namespace, "anywhere").Status.NodeName).NotTo(Equal(without))
		restoreKVM(ctx)
		expectReady(ctx, namespace, "there")
	}, specTimeout(8*time.Minute))

	It("powers off by ACPI when its VM is stopped", func(ctx context.Context) {
		instance := vmi(ctx, g.namespace, g.name)
		expectVirtctl(ctx, "stop", "-n", g.namespace, g.name)
		Eventually(g.consoles.text).WithContext(ctx).WithTimeout(bootTimeout).Should(ContainSubstring(bareguest.PoweringOff))
		expectGone(ctx, instance)
		expectStopped(ctx, g.namespace, g.name)
	}, specTimeout(6*time.Minute))

	It("is started at growing intervals if KVM refuses its CPU", func(ctx context.Context) {
		if processor, err := os.ReadFile("/proc/cpuinfo"); err != nil || hardwareKVM.Match(processor) {
			Skip("a KVM with hardware support refuses no CPU of the node")
		}
		namespace := newNamespace(ctx)
		create(ctx, makeBareVM(namespace, "refused", func(vm *v1.VirtualMachine) {
			// It sets a register that a KVM without hardware support does not have.
			spec(vm).Domain.CPU = &v1.CPU{Model: v1.CPUModeHostModel}
		}))
		refused := And(HaveField("Type", v1.VirtualMachineInstanceSynchronized),
			HaveField("Status", corev1.ConditionFalse), HaveField("Message", ContainSubstring("MSR")))
		Eventually(func(gg Gomega) {
			instance := vmi(ctx, namespace, "refused")
			gg.Expect(instance).NotTo(BeNil())
			gg.Expect(instance.Status.Conditions).To(ContainElement(refused))
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
		pod := launcherPod(ctx, vmi(ctx, namespace, "refused"))
		// The delays are 1, 2, 4, 8, 16 s and so on: after four starts, there are at most two in 20 s.
		starts := func() int {
			// libvirt repeats QEMU's message in its own.
			found := qemuRefused.FindAllString(podLog(ctx, pod, "compute"), -1)
			slices.Sort(found)
			return len(slices.Compact(found))
		}
		Eventually(starts).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(time.Second).
			Should(BeNumerically(">=", 4))
		before := starts()
		Consistently(starts).WithContext(ctx).WithTimeout(20 * time.Second).WithPolling(time.Second).
			Should(BeNumerically("<=", before+2))
	}, specTimeout(6*time.Minute))
})

// kvmGuest is a guest without an operating system.
type kvmGuest struct{ migratingGuest }

// start starts the guest, and waits until it counts.
func (g *kvmGuest) start(ctx context.Context) {
	GinkgoHelper()
	g.migratingGuest = countingGuest("bare")
	g.namespace = newNamespace(ctx)
	create(ctx, makeBareVM(g.namespace, g.name))
	g.instance = expectReady(ctx, g.namespace, g.name)
	g.followCounts(ctx)
}

// counted returns the number of ticks that the guest has reported last.
func (g *kvmGuest) counted() uint32 { return bareguest.Last(g.consoles.text()).Ticks }

// expectConsistent checks what the guest has reported since its start. A line that the guest wrote partly in one Pod
// and partly in another is missing.
func (g *kvmGuest) expectConsistent() {
	GinkgoHelper()
	Expect(bareguest.Check(bareguest.Reports(g.consoles.text()), g.migrated)).To(Succeed())
}

// reportsAfterReset returns the reports since the guest was ready for the second time.
func reportsAfterReset(output string) []bareguest.Report {
	parts := strings.SplitN(output, bareguest.Ready, 3)
	if len(parts) < 3 {
		return nil
	}
	return bareguest.Reports(parts[2])
}

// needKVM skips a spec on a machine without KVM, or with nodes elsewhere.
func needKVM() {
	GinkgoHelper()
	needLocalNodes()
	kvm, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		Skip("this machine has no KVM: " + err.Error())
	}
	Expect(kvm.Close()).To(Succeed())
}

// useKVM lets guests run under KVM until the last spec of the container has ended.
func useKVM(ctx context.Context) {
	GinkgoHelper()
	before := useEmulation(ctx)
	setEmulation(ctx, false)
	DeferCleanup(func(ctx context.Context) { setEmulation(ctx, before) }, nodeTimeout(rolloutTimeout+time.Minute))
	for _, node := range nodes(ctx) {
		expectKVM(ctx, node, BeNumerically(">", 0))
	}
}

// setKVMMode changes the mode of the device of KVM on this machine, and so of all nodes, until the container has ended.
func setKVMMode(mode os.FileMode) {
	GinkgoHelper()
	before, err := os.Stat(kvmDevice)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(os.Chmod(kvmDevice, before.Mode().Perm())).To(Succeed()) })
	Expect(os.Chmod(kvmDevice, mode)).To(Succeed())
}

// removeKVM takes the device of KVM from a node until restore is called, and waits until the kubelet reports that.
func removeKVM(ctx context.Context, node string) (restore func(context.Context)) {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "no-device")
	Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	mounted := false
	restore = func(ctx context.Context) {
		GinkgoHelper()
		if mounted {
			onNode(ctx, node, "umount", kvmDevice)
			mounted = false
			restartBroker(ctx, node)
			expectKVM(ctx, node, BeNumerically(">", 0))
		}
	}
	DeferCleanup(restore, nodeTimeout(4*time.Minute))
	onNode(ctx, node, "mount", "--bind", file, kvmDevice)
	mounted = true
	restartBroker(ctx, node)
	expectKVM(ctx, node, BeZero())
	return restore
}

// onNode runs a command on a node.
func onNode(ctx context.Context, node string, command ...string) {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, os.Getenv("VIREO_CLUSTER"),
		append([]string{"exec", node, "--"}, command...)...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}

// restartBroker replaces virt-broker's Pod of a node: a container sees what was mounted before its start.
func restartBroker(ctx context.Context, node string) {
	GinkgoHelper()
	kubectl(ctx, "", "delete", "pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-broker", "--field-selector",
		"spec.nodeName="+node)
}

// setEmulation sets whether guests run without KVM.
func setEmulation(ctx context.Context, emulation bool) {
	GinkgoHelper()
	kubectl(ctx, "", "patch", "-n", "kubevirt", "kubevirt/kubevirt", "--type=merge", "--patch",
		fmt.Sprintf(`{"spec":{"configuration":{"developerConfiguration":{"useEmulation":%t}}}}`, emulation))
	expectRolledOut(ctx, imageTag)
	Eventually(nodes).WithArguments(ctx).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).
		ShouldNot(BeEmpty())
}

// makeBareVM returns a VM with the guest without an operating system, and without disks.
func makeBareVM(namespace, name string, options ...option) *v1.VirtualMachine {
	return makeVM(namespace, name, append([]option{func(vm *v1.VirtualMachine) {
		s := spec(vm)
		s.Volumes, s.Domain.Devices.Disks = nil, nil
		s.Domain.Memory.Guest = ptr.To(resource.MustParse("64Mi"))
		s.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{
			Image: image("guest-bare"), ImagePullPolicy: corev1.PullIfNotPresent, KernelPath: "/boot/guest-bare.elf",
		}}}
		// A KVM without hardware support lacks a register of the feature.
		s.Domain.CPU = &v1.CPU{
			Model: v1.CPUModeHostPassthrough, Features: []v1.CPUFeature{{Name: "arch-capabilities", Policy: "disable"}},
		}
		// One that needs no vhost-net, which the machine may lack.
		s.Domain.Devices.Interfaces[0].Model = "e1000"
	}}, options...)...)
}
