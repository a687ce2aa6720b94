// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("The target of a VirtualMachineInstanceMigration", func() {
	var m *migrations

	BeforeEach(func() { m = newMigrations() })

	// runs returns a VMI that runs on a node with these labels.
	runs := func(b *builder.VMI, labels map[string]string) *v1.VirtualMachineInstance {
		GinkgoHelper()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.node("a"), Labels: labels}}
		Expect(client.IgnoreAlreadyExists(K8sClient.Create(ctx, node))).To(Succeed())
		vmi := m.assignedTo(m.node("a"), b)
		ReportAsAgent(vmi, Running)
		return ExpectExists(vmi)
	}

	model := func(name string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{Model: name} }
	}

	It("uses the image with the digest that the kubelet reported for the source", func() {
		const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		vmi := runs(builder.MakeVMI("vm").With(model("Penryn")).ContainerDisk("root", "registry:5000/os:latest"), nil)
		pod := ExpectExists(PodOf(vmi))
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", VolumeMounts: []corev1.VolumeMountStatus{{
			Name: "root", MountPath: "/image",
			VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: "registry:5000/os@" + digest}},
		}}}}
		Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(m.target(vmi, vmim)).Spec.Volumes).To(ContainElement(HaveField("VolumeSource.Image",
			And(Not(BeNil()), HaveField("Reference", "registry:5000/os@"+digest)))))
	})

	It("gets a hotplugged volume of the guest by an attachment Pod of its own", func() {
		ExpectCreated(builder.MakePVC("data-claim").Namespace(m.ns).Obj())
		vmi := runs(builder.MakeVMI("vm").With(model("Penryn")), nil)
		Plug(vmi, "data", "data-claim")
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{
			Name: "data", Phase: v1.VolumeReady, HotplugVolume: &v1.HotplugVolumeStatus{},
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "data-claim"},
		})
		ExpectStatus(vmi)
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		Expect(podspec.HasClaim(target, "data-claim")).To(BeFalse())
		m.setPodStatus(target, m.node("b"), builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		of := func(launcher *corev1.Pod) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns,
				Name: podspec.AttachmentName(launcher.UID, "data")}}
		}
		attachment := ExpectExists(of(target))
		Expect(podspec.AttachmentLauncher(attachment).Name).To(Equal(target.Name))
		ExpectExists(of(ExpectExists(PodOf(vmi))))
	})

	It("has the SELinux level of the source, for which it waits", func() {
		vmi := m.assignedTo(m.node("a"), builder.MakeVMI("vm").With(model("Penryn")))
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			Running(s)
			s.SelinuxContext = ""
		})
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		ExpectGone(m.target(vmi, vmim))
		ReportAsAgent(ExpectExists(vmi), func(s *v1.VirtualMachineInstanceStatus) {
			s.SelinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
		})
		m.reconcileAll(vmim)
		Expect(ExpectExists(m.target(vmi, vmim)).Spec.SecurityContext.SELinuxOptions).To(
			HaveValue(Equal(corev1.SELinuxOptions{Level: "s0:c1,c2"})))
	})

	It("has a level of its own if the configuration says so", func() {
		m = newMigrations(func(config *clusterconfig.Config) {
			config.Migrations.MatchSELinuxLevelOnMigration = ptr.To(false)
		})
		vmi := runs(builder.MakeVMI("vm").With(model("Penryn")), nil)
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			s.SelinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
		})
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(m.target(vmi, vmim)).Spec.SecurityContext.SELinuxOptions).To(BeNil())
	})

	It("requires a CPU of the same vendor if the source's node has the label", func() {
		const intel = v1.CPUModelVendorLabel + "Intel"
		vmi := runs(builder.MakeVMI("vm").With(model("Penryn")), map[string]string{intel: "true"})
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(m.target(vmi, vmim)).Spec.NodeSelector).To(HaveKeyWithValue(intel, "true"))
	})

	It("requires the same CPU model for host-passthrough", func() {
		vmi := runs(builder.MakeVMI("vm").With(model(v1.CPUModeHostPassthrough)),
			map[string]string{v1.HostModelCPULabel + "Skylake": "true"})
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(m.target(vmi, vmim)).Spec.NodeSelector).
			To(HaveKeyWithValue(v1.HostModelCPULabel+"Skylake", "true"))
	})

	It("requires no vendor for a CPU model if the source's node has no label", func() {
		vmi := runs(builder.MakeVMI("vm").With(model("Penryn")), nil)
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(m.target(vmi, vmim)).Spec.NodeSelector).NotTo(HaveKey(HavePrefix(v1.CPUModelVendorLabel)))
	})
})
