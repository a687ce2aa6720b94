// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VMI with other interfaces", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		config := w.Config.Current()
		config.MigratesWorkloads = true
		w.Config = FixedConfig{Config: config}
	})
	const networks, required = "k8s.v1.cni.cncf.io/networks", v1.VirtualMachineInstanceMigrationRequired
	blue := launcherpod.SecondaryInterface("blue")
	// runs starts a guest without a second interface.
	runs := func(migratable corev1.ConditionStatus) *v1.VirtualMachineInstance {
		GinkgoHelper()
		vmi := w.assigned(builder.MakeVMI("vm").Masquerade())
		ReportAsAgent(vmi, Running)
		ReportAsAgent(vmi, InGuest("default"))
		ReportAsAgent(vmi, WithCondition(v1.VirtualMachineInstanceIsMigratable, migratable, "DisksNotLiveMigratable",
			"claim data is not shared"))
		w.expectQuiet(vmi)
		return ExpectExists(vmi)
	}
	// multus reports the networks of the Pod.
	multus := func(vmi *v1.VirtualMachineInstance, interfaces ...string) {
		GinkgoHelper()
		var list []string
		for _, name := range interfaces {
			list = append(list, fmt.Sprintf(`{"interface":%q}`, name))
		}
		pod := ExpectExists(PodOf(vmi))
		pod.Annotations["k8s.v1.cni.cncf.io/network-status"] = "[" + strings.Join(list, ",") + "]"
		Expect(K8sClient.Update(ctx, pod)).To(Succeed())
	}

	It("requests a new network for its Pod, and migrates if nothing attaches it within 15 seconds", func() {
		vmi := runs(corev1.ConditionTrue)
		ChangeVMISpec(vmi, WithBlueNetwork)
		result := w.Step(vmi)
		Expect(result.RequeueAfter).To(BeNumerically("<=", 15*time.Second))
		Expect(result.RequeueAfter).To(BeNumerically(">", 10*time.Second))
		Expect(ExpectExists(PodOf(vmi)).Annotations).To(HaveKeyWithValue(networks,
			fmt.Sprintf(`[{"name":"blue-net","namespace":%q,"interface":%q}]`, w.ns, blue)))
		Expect(ExpectExists(vmi)).To(HaveCondition(required, corev1.ConditionFalse, "AutoMigrationPending", "networks blue"))
		w.expectQuiet(vmi)

		w.clock.SetTime(w.clock.Now().Add(16 * time.Second))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(required, corev1.ConditionTrue, "AutoMigrationDueToLiveUpdate", "the guest migrates"))
		w.expectQuiet(vmi)

		By("being attached after all")
		multus(vmi, "eth0", blue)
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(required))
		w.expectQuiet(vmi)
	})

	It("says that it needs a restart if the guest does not migrate", func() {
		vmi := runs(corev1.ConditionFalse)
		ChangeVMISpec(vmi, WithBlueNetwork)
		w.Step(vmi)
		w.clock.SetTime(w.clock.Now().Add(16 * time.Second))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(required, corev1.ConditionFalse, "RestartRequired", "claim data is not shared"))
		w.expectQuiet(vmi)

		By("taking the interface back")
		ChangeVMISpec(vmi, func(s *v1.VirtualMachineInstanceSpec) {
			s.Networks, s.Domain.Devices.Interfaces = s.Networks[:1], s.Domain.Devices.Interfaces[:1]
		})
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(required))
	})

	It("migrates at once for another network of an interface that it has, or says that it needs a restart", func() {
		vmi := runs(corev1.ConditionTrue)
		ChangeVMISpec(vmi, WithBlueNetwork)
		w.Step(vmi)
		multus(vmi, "eth0", blue)
		ReportAsAgent(vmi, InGuest("default", "blue"))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(required))

		ChangeVMISpec(vmi, func(s *v1.VirtualMachineInstanceSpec) { s.Networks[1].Multus.NetworkName = "red-net" })
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(required, corev1.ConditionTrue, "AutoMigrationDueToLiveUpdate",
			"other networks for the interfaces blue: the guest migrates"))
		w.expectQuiet(vmi)
		ReportAsAgent(vmi, WithCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse,
			"DisksNotLiveMigratable", "claim data is not shared"))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(required, corev1.ConditionFalse, "RestartRequired", "claim data is not shared"))

		By("taking the change back")
		ChangeVMISpec(vmi, func(s *v1.VirtualMachineInstanceSpec) { s.Networks[1].Multus.NetworkName = "blue-net" })
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(required))
		w.expectQuiet(vmi)
	})

	It("leaves the network of an absent interface to its Pod until the guest has released the interface", func() {
		vmi := runs(corev1.ConditionTrue)
		ChangeVMISpec(vmi, WithBlueNetwork)
		multus(vmi, "eth0", blue)
		ReportAsAgent(vmi, InGuest("default", "blue"))
		w.expectQuiet(vmi)

		ChangeVMISpec(vmi, func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
		})
		w.expectQuiet(vmi)
		ReportAsAgent(vmi, InGuest("default"))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(required, corev1.ConditionFalse, "AutoMigrationPending", blue))
		w.clock.SetTime(w.clock.Now().Add(16 * time.Second))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(required, corev1.ConditionTrue, "AutoMigrationDueToLiveUpdate", blue))

		By("being detached")
		multus(vmi, "eth0")
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(required))
	})
})
