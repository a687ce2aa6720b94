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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// testdata returns a manifest of this suite.
func testdata(name string) string {
	GinkgoHelper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	Expect(err).NotTo(HaveOccurred())
	return string(raw)
}

// createTypedVM creates a VM with the small guest as a user does, and returns its manifest.
func createTypedVM(ctx context.Context, namespace, name, instancetype, preference string) string {
	GinkgoHelper()
	manifest := expectVirtctl(ctx, "create", "vm", "--name="+name, "--instancetype="+instancetype,
		"--preference="+preference,
		"--volume-containerdisk=src:"+image("guest-small"), "--termination-grace-period=20")
	kubectl(ctx, manifest, "apply", "-n", namespace, "-f", "-")
	return manifest
}

func readVM(ctx context.Context, namespace, name string) *v1.VirtualMachine {
	GinkgoHelper()
	vm := &v1.VirtualMachine{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
	return vm
}

// expectStored checks that a reference in the status of a VM names a ControllerRevision that exists.
func expectStored(ctx context.Context, namespace string, ref *v1.InstancetypeStatusRef, name string) {
	GinkgoHelper()
	Expect(ref).To(HaveField("Name", name))
	Expect(ref.ControllerRevisionRef).NotTo(BeNil())
	revision := &appsv1.ControllerRevision{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.ControllerRevisionRef.Name}, revision)).
		To(Succeed())
}

var _ = Describe("A VM with an instance type and a preference", func() {
	It("infers them from the golden image of its DataVolume, and its manifest stays as it is", extended(3),
		func(ctx context.Context) {
			namespace := newNamespace(ctx)
			startImporter(ctx, namespace)
			manifest := strings.ReplaceAll(testdata("inference.yaml"), "NAMESPACE", namespace)
			kubectl(ctx, manifest, "apply", "-n", namespace, "-f", "-")
			expectGolden(ctx, namespace, "golden")
			instance := expectReady(ctx, namespace, "guide")
			expectConsole(ctx, namespace, "guide", bootTimeout,
				And(ContainSubstring(guestReady), ContainSubstring("USER-DATA-42")))

			Expect(instance.Annotations).To(And(
				HaveKeyWithValue(v1.ClusterInstancetypeAnnotation, "u1.nano"),
				HaveKeyWithValue(v1.ClusterPreferenceAnnotation, "linux")))
			Expect(instance.Spec.Domain.Memory.Guest).To(HaveValue(BeComparableTo(resource.MustParse("512Mi"))))
			Expect(instance.Spec.Domain.Devices.Disks).To(And(HaveLen(2), HaveEach(HaveField("Disk.Bus", v1.DiskBusVirtio))))
			Expect(instance.Spec.Domain.Devices.Interfaces).To(ConsistOf(HaveField("Model", v1.VirtIO)))
			vm := readVM(ctx, namespace, "guide")
			expectStored(ctx, namespace, vm.Status.InstancetypeRef, "u1.nano")
			expectStored(ctx, namespace, vm.Status.PreferenceRef, "linux")
			Expect(vm.Spec.Instancetype).To(HaveValue(Equal(v1.InstancetypeMatcher{InferFromVolume: "root"})))
			differences, _ := kubectlOutputs(ctx, manifest, "diff", "-n", namespace, "-f", "-")
			Expect(differences).To(BeEmpty())
		}, specTimeout(8*time.Minute))

	It("runs as Linux, as Windows and as a legacy guest, of u1 and of o1", kvmLinux(), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		for _, vm := range []struct{ name, instancetype, preference string }{
			{"linux", "u1.nano", "debian"}, {"windows", "o1.nano", "windows.2k12"}, {"legacy", "u1.nano", "legacy"},
		} {
			createTypedVM(ctx, namespace, vm.name, vm.instancetype, vm.preference)
		}
		linux, windows, legacy := expectReady(ctx, namespace, "linux"), expectReady(ctx, namespace, "windows"),
			expectReady(ctx, namespace, "legacy")

		bus := func(instance *v1.VirtualMachineInstance) v1.DiskBus {
			return instance.Spec.Domain.Devices.Disks[0].Disk.Bus
		}
		Expect([]v1.DiskBus{bus(linux), bus(windows), bus(legacy)}).
			To(Equal([]v1.DiskBus{v1.DiskBusVirtio, v1.DiskBusSATA, v1.DiskBusSATA}))
		Expect(linux.Spec.Domain.Firmware.Bootloader.EFI).NotTo(BeNil())
		Expect(windows.Spec.Domain.Features.Hyperv).NotTo(BeNil())
		Expect(windows.Spec.Domain.Resources.Requests).To(
			HaveKeyWithValue(corev1.ResourceMemory, BeComparableTo(resource.MustParse("256Mi"))))
	}, specTimeout(8*time.Minute))

	It("runs on CPUs and huge pages of its own as cx1", kvmLinux(), func(ctx context.Context) {
		list := &corev1.NodeList{}
		Expect(k8s.List(ctx, list, client.MatchingLabels{v1.CPUManager: "true"})).To(Succeed())
		var pages resource.Quantity
		for i := range list.Items {
			pages.Add(list.Items[i].Status.Allocatable["hugepages-2Mi"])
		}
		if needs := resource.MustParse("2Gi"); pages.Cmp(needs) < 0 {
			Skip("no node has the CPU manager's policy static and 2 GiB of huge pages")
		}
		namespace := newNamespace(ctx)
		createTypedVM(ctx, namespace, "exclusive", "cx1.medium", "linux")
		instance := expectReady(ctx, namespace, "exclusive")
		Expect(instance.Spec.Domain.CPU.DedicatedCPUPlacement).To(BeTrue())
		Expect(instance.Spec.Domain.CPU.NUMA.GuestMappingPassthrough).NotTo(BeNil())
		needLocalNodes()
		qemu := processOf(ctx, instance, "qemu-system-x86_64")
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", qemu.PID))
		Expect(err).NotTo(HaveOccurred())
		Expect(string(command)).To(MatchRegexp(`"memory-backend-file".*"prealloc":true.*"host-nodes":\[\d+\],"policy":"bind"`),
			"the guest's memory is in huge pages of the node of its CPUs")
		Expect(string(command)).To(ContainSubstring("-numa\x00node,nodeid=0,cpus=0"))
	}, specTimeout(8*time.Minute))

	It("starts as soon as a missing instance type exists, and virtctl explains and expands it", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		manifest := createTypedVM(ctx, namespace, "early", "virtualmachineinstancetype/tiny", "linux")
		Eventually(func() string { // without the line breaks of the terminal
			return strings.Join(strings.Fields(expectVirtctl(ctx, "explain", "-n", namespace, "early")), " ")
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(ContainSubstring(
			`! The VM's instance type cannot be found. - virtualmachineinstancetypes.instancetype.kubevirt.io "tiny" not found`))

		kubectl(ctx, testdata("instancetype.yaml"), "apply", "-n", namespace, "-f", "-")
		instance := expectReady(ctx, namespace, "early")
		Expect(instance.Annotations).To(HaveKeyWithValue(v1.InstancetypeAnnotation, "tiny"))
		Expect(instance.Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))

		expanded := &v1.VirtualMachine{}
		Expect(yaml.Unmarshal([]byte(expectVirtctl(ctx, "expand", "-n", namespace, "--vm=early")), expanded)).To(Succeed())
		Expect(expanded.Spec).To(And(HaveField("Instancetype", BeNil()), HaveField("Preference", BeNil()),
			HaveField("Template.Spec.Domain.CPU.Sockets", BeEquivalentTo(2)),
			HaveField("Template.Spec.Domain.Memory.Guest", HaveValue(BeComparableTo(resource.MustParse("96Mi")))),
			HaveField("Template.Spec.Domain.Devices.Disks", ConsistOf(HaveField("Disk.Bus", v1.DiskBusVirtio)))))
		differences, _ := kubectlOutputs(ctx, manifest, "diff", "-n", namespace, "-f", "-")
		Expect(differences).To(BeEmpty())
	}, specTimeout(8*time.Minute))
})
