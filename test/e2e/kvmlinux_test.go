// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	instancetypev1 "github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// kvmLinux labels specs that also run where guests with Linux run under KVM, on one node: `make test-kvm` runs them.
func kvmLinux() Labels { return Label("kvm-linux") }

// kvmLinuxLong is like kvmLinux, for specs that run there only with ALL=1.
func kvmLinuxLong() Labels { return Label("kvm-linux", "kvm-linux-long") }

// hypervisor prints what the guest knows about its processor.
const hypervisor = `#!/bin/sh
echo "VIREO-CLOCK $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)." >/dev/console
echo "VIREO-CPU $(grep -m1 'model name' /proc/cpuinfo)." >/dev/console
`

var _ = Describe("A Linux under KVM", kvmLinux(), func() {
	var namespace string
	BeforeEach(func(ctx context.Context) {
		needKVMForLinux(ctx)
		namespace = newNamespace(ctx)
	}, nodeTimeout(time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))

	start := func(ctx context.Context, cpu *v1.CPU) (qemu []string) {
		GinkgoHelper()
		create(ctx, makeVM(namespace, "linux", withUserData(hypervisor), func(vm *v1.VirtualMachine) {
			spec(vm).Domain.CPU = cpu
		}))
		instance := expectReady(ctx, namespace, "linux")
		expectConsole(ctx, namespace, "linux", bootTimeout,
			And(ContainSubstring(guestReady), ContainSubstring("VIREO-CPU"), ContainSubstring("VIREO-CLOCK kvm-clock.")))
		process := processOf(ctx, instance, "qemu-system-x86_64")
		Expect(statusOf(process.PID)["Uid"]).To(HavePrefix("107\t"))
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", process.PID))
		Expect(err).NotTo(HaveOccurred())
		qemu = strings.Split(string(command), "\x00")
		Expect(qemu).To(ContainElements("-accel", "kvm"))
		Expect(qemu).To(ContainElement(ContainSubstring(`"vhost":true`)), "the NIC is served by vhost-net")
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", process.PID))
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("cgroups of QEMU", string(groups))
		if enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err == nil && enabled[0] == 'Y' {
			profile, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/apparmor/current", process.PID))
			Expect(err).NotTo(HaveOccurred())
			Expect(string(profile)).To(HaveSuffix(" (enforce)\n"), "the AppArmor profile of QEMU")
		}
		return qemu
	}

	// The guest's model is what a label of its node names, or the node's processor.
	DescribeTable("starts with a CPU model",
		func(ctx context.Context, model string, named func(context.Context) string) {
			name := named(ctx)
			if model == "" {
				model = name
			}
			command := start(ctx, &v1.CPU{Model: model})
			cpu := slices.Index(command, "-cpu") + 1
			Expect(command[cpu]).To(Or(Equal(name), HavePrefix(name+",")))
		},
		Entry("of the node", specTimeout(6*time.Minute), v1.CPUModeHostModel, hostModel),
		Entry("that is the node's processor", specTimeout(6*time.Minute), v1.CPUModeHostPassthrough,
			func(context.Context) string { return "host" }),
		Entry("that the node's labels name", specTimeout(6*time.Minute), "", labelledModel))

	DescribeTable("migrates there and back, and then counts on, with a CPU model", Serial,
		func(ctx context.Context, model string) {
			if len(nodes(ctx)) < 2 {
				Skip("migrations need two nodes")
			}
			g := countingGuest("linux")
			g.namespace = namespace
			create(ctx, makeVM(namespace, g.name, withUserData("#!/bin/sh\n"+counter), func(vm *v1.VirtualMachine) {
				spec(vm).Domain.CPU = &v1.CPU{Model: model}
			}))
			g.instance = expectReady(ctx, namespace, g.name)
			g.followCounts(ctx)
			for range 2 {
				g.expectMigration(ctx, g.migrate)
				g.expectCounts(ctx)
			}
			AddReportEntry("numbers without a gap", fmt.Sprint(g.expectAllCounted()))
		},
		Entry("of the node", specTimeout(10*time.Minute), v1.CPUModeHostModel),
		Entry("that is the node's processor", specTimeout(10*time.Minute), v1.CPUModeHostPassthrough))

	DescribeTable("starts whatever the mode of the node's device is", Serial, func(ctx context.Context, mode os.FileMode) {
		needOwnMachine()
		setKVMMode(mode)
		start(ctx, nil)
		now, err := os.Stat(kvmDevice)
		Expect(err).NotTo(HaveOccurred())
		Expect(now.Mode().Perm()).To(Equal(mode), "the node's own device is not changed")
	},
		Entry("0660", specTimeout(6*time.Minute), os.FileMode(0o660)),
		Entry("0600", specTimeout(6*time.Minute), os.FileMode(0o600)))

	It("has a node whose labels are what libvirt of its Pod reports", func(ctx context.Context) {
		start(ctx, nil)
		instance := vmi(ctx, namespace, "linux")
		text, err := execIn(ctx, launcherPod(ctx, instance), "/usr/bin/virsh", "--connect",
			"qemu+unix:///session?socket="+launcherpod.LibvirtSocket, "domcapabilities", "--machine", "q35")
		Expect(err).NotTo(HaveOccurred())
		var reported libvirtxml.DomainCaps
		Expect(reported.Unmarshal(text)).To(Succeed())
		Expect(reported.Domain).To(Equal("kvm"))
		expectLabels(readNode(ctx, instance.Status.NodeName), &reported)
	}, specTimeout(6*time.Minute))

	// Only KVM has the enlightenments of Hyper-V. A guest that is paused from the start executes nothing, but has its
	// virtual CPUs.
	It("has each preference", slow(), kvmLinuxLong(), func(ctx context.Context) {
		list := &instancetypev1.VirtualMachineClusterPreferenceList{}
		Expect(k8s.List(ctx, list)).To(Succeed())
		preferences := slices.DeleteFunc(list.Items, needsOtherProcessor)
		enlightened := 0
		for batch := range slices.Chunk(preferences, 4) {
			for i := range batch {
				create(ctx, makePreferredVM(namespace, &batch[i]))
			}
			for i := range batch {
				name := batch[i].Name
				By(name)
				expectPrintable(ctx, namespace, name, v1.VirtualMachineStatusPaused)
				process := processOf(ctx, vmi(ctx, namespace, name), "qemu-system-x86_64")
				command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", process.PID))
				Expect(err).NotTo(HaveOccurred())
				Expect(strings.Split(string(command), "\x00")).To(ContainElements("-accel", "kvm"))
				if features := batch[i].Spec.Features; features != nil && features.PreferredHyperv != nil {
					enlightened++
					Expect(string(command)).To(ContainSubstring(",hv-"))
				}
			}
			for i := range batch {
				vm := readVM(ctx, namespace, batch[i].Name)
				Expect(k8s.Delete(ctx, vm)).To(Succeed())
				expectGone(ctx, vm)
			}
		}
		Expect(enlightened).To(BeNumerically(">", 0))
		AddReportEntry("preferences, and those with Hyper-V", fmt.Sprint(len(preferences), enlightened))
	}, specTimeout(12*time.Minute))

	It("waits for KVM while its module is not loaded", Serial, func(ctx context.Context) {
		needOwnMachine()
		load := func(arguments ...string) {
			GinkgoHelper()
			out, err := exec.CommandContext(ctx, "/usr/sbin/modprobe", arguments...).CombinedOutput()
			Expect(err).NotTo(HaveOccurred(), string(out))
		}
		DeferCleanup(func() {
			out, err := exec.Command("/usr/sbin/modprobe", "kvm_amd").CombinedOutput()
			Expect(err).NotTo(HaveOccurred(), string(out))
		})
		node := nodes(ctx)[0]
		load("-r", "kvm_amd")
		expectKVM(ctx, node, BeZero())
		create(ctx, makeVM(namespace, "linux"))
		expectPrintable(ctx, namespace, "linux", v1.VirtualMachineStatusUnschedulable)
		explained, _ := runVirtctl(ctx, "explain", "-n", namespace, "linux")
		Expect(explained).To(ContainSubstring("no KVM"))
		load("kvm_amd")
		expectKVM(ctx, node, BeNumerically(">", 0))
		expectReady(ctx, namespace, "linux")
	}, specTimeout(8*time.Minute))
})

// expectLabels checks the labels of a node against what libvirt reports. Obsolete CPU models get no label.
func expectLabels(node *corev1.Node, reported *libvirtxml.DomainCaps) {
	GinkgoHelper()
	for _, mode := range reported.CPU.Modes {
		switch mode.Name {
		case "host-model":
			Expect(labeled(node, v1.HostModelCPULabel)).To(ConsistOf(mode.Models[0].Name))
			var required []string
			for _, feature := range mode.Features {
				if feature.Policy == "require" {
					required = append(required, feature.Name)
				}
			}
			Expect(labeled(node, v1.HostModelRequiredFeaturesLabel)).To(ConsistOf(required))
		case "custom":
			var usable []string
			for _, model := range mode.Models {
				if model.Usable == "yes" {
					usable = append(usable, model.Name)
				}
			}
			Expect(usable).To(ContainElements(labeled(node, v1.CPUModelLabel)))
		}
	}
	Expect(labeled(node, v1.CPUFeatureLabel)).To(ContainElements(labeled(node, v1.HostModelRequiredFeaturesLabel)))
	Expect(labeled(node, v1.CPUFeatureLabel)).To(ContainElements("fpu", "sse2", "nx"), "features of the model itself")
	Expect(reported.Features.HyperV.Supported).To(Equal("yes"))
	Expect(labeled(node, v1.HypervLabel)).To(ContainElements("base", "time", "vpindex", "synic", "synictimer"))
}

// needsOtherProcessor reports whether a preference is for nodes of another architecture.
func needsOtherProcessor(preference instancetypev1.VirtualMachineClusterPreference) bool {
	needs := preference.Spec.Requirements
	return needs != nil && needs.Architecture != nil && *needs.Architecture != runtime.GOARCH
}

// makePreferredVM returns a VM with a preference that is paused from its start, with what the preference requires.
func makePreferredVM(
	namespace string, preference *instancetypev1.VirtualMachineClusterPreference,
) *v1.VirtualMachine {
	return makeVM(namespace, preference.Name, func(vm *v1.VirtualMachine) {
		vm.Spec.Preference = &v1.PreferenceMatcher{Name: preference.Name}
		s := spec(vm)
		s.StartStrategy = ptr.To(v1.StartStrategyPaused)
		s.Domain.Devices.Disks, s.Domain.Devices.Interfaces[0].Model = nil, ""
		s.Domain.CPU = &v1.CPU{}
		if needs := preference.Spec.Requirements; needs != nil {
			if needs.CPU != nil {
				s.Domain.CPU.Sockets = needs.CPU.Guest
			}
			if needs.Memory != nil {
				s.Domain.Memory.Guest = &needs.Memory.Guest
			}
		}
		// The guest never uses its memory.
		s.Domain.Resources.Requests = corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("128Mi"), corev1.ResourceCPU: resource.MustParse("10m"),
		}
	})
}

// expectKVM waits until a node has a number of devices for guests under KVM.
func expectKVM(ctx context.Context, node string, guests gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	Eventually(func() int64 {
		kvm := readNode(ctx, node).Status.Allocatable[kvmResource]
		return kvm.Value()
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(guests)
}

// hostModel returns the CPU model that guests with host-model have on the first node, according to its labels.
func hostModel(ctx context.Context) string {
	GinkgoHelper()
	names := labeled(readNode(ctx, nodes(ctx)[0]), v1.HostModelCPULabel)
	Expect(names).To(HaveLen(1))
	return names[0]
}

// labelledModel returns a CPU model that the first node supports according to its labels.
func labelledModel(ctx context.Context) string {
	GinkgoHelper()
	names := labeled(readNode(ctx, nodes(ctx)[0]), v1.CPUModelLabel)
	if len(names) == 0 {
		Skip("the node supports no model that is not obsolete")
	}
	return slices.Max(names)
}

// labeled returns what the labels of a node with a prefix name, in no order.
func labeled(node *corev1.Node, prefix string) (names []string) {
	for label := range node.Labels {
		if name, found := strings.CutPrefix(label, prefix); found {
			names = append(names, name)
		}
	}
	return names
}

// kvmDevice is the device of KVM, which the local cluster's nodes share with this machine.
const kvmDevice = "/dev/kvm"

// needKVMForLinux skips a spec unless guests run under KVM.
func needKVMForLinux(ctx context.Context) {
	GinkgoHelper()
	if useEmulation(ctx) {
		Skip("guests of this cluster run in software emulation")
	}
}

// useEmulation returns whether guests run without KVM.
func useEmulation(ctx context.Context) bool {
	GinkgoHelper()
	list := &v1.KubeVirtList{}
	Expect(k8s.List(ctx, list)).To(Succeed())
	Expect(list.Items).To(HaveLen(1))
	developer := list.Items[0].Spec.Configuration.DeveloperConfiguration
	return developer != nil && developer.UseEmulation
}

// needOwnMachine skips a spec that changes the kernel of the machine, unless the machine is there for the specs only.
func needOwnMachine() {
	GinkgoHelper()
	if os.Getenv("VIREO_E2E_OWN_MACHINE") == "" {
		Skip("changes this machine: only in the machine of `make test-kvm`")
	}
}
