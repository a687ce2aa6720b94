// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// addRed adds an interface with some binding on another network of Multus.
func addRed(spec *v1.VirtualMachineInstanceSpec, binding v1.InterfaceBindingMethod) {
	spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces,
		v1.Interface{Name: "red", InterfaceBindingMethod: binding})
	spec.Networks = append(spec.Networks, v1.Network{
		Name: "red", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "red-net"}},
	})
}

var _ = Describe("VirtualMachine with other interfaces", func() {
	var m *vmHarness
	BeforeEach(func() {
		m = newVMHarness()
		config := clusterconfig.Default()
		config.RolloutStrategy = v1.VMRolloutStrategyStage
		m.Config = FixedConfig{Config: config}
	})
	runs := func() (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
		GinkgoHelper()
		vm, vmi := m.started(builder.MakeVM("vm").Template(builder.MakeVMI("vm").Masquerade()))
		SetVMIStatus(vmi, v1.Running, revised(vmi), InGuest("default"))
		return vm, vmi
	}
	state := func(vm *v1.VirtualMachine) (all []string) {
		GinkgoHelper()
		for _, iface := range InstanceOf(vm).Spec.Domain.Devices.Interfaces {
			all = append(all, iface.Name+string(iface.State))
		}
		Expect(InstanceOf(vm).Spec.Networks).To(HaveLen(len(all)))
		return all
	}
	absent := func(t *v1.VirtualMachineInstanceTemplateSpec) {
		t.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
	}
	removed := func(t *v1.VirtualMachineInstanceTemplateSpec) {
		t.Spec.Networks, t.Spec.Domain.Devices.Interfaces = t.Spec.Networks[:1], t.Spec.Domain.Devices.Interfaces[:1]
	}

	It("gives its VMI a new one, makes it absent, and removes it once the guest has released it", func() {
		vm, vmi := runs()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { WithBlueNetwork(&t.Spec) })
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blue"}))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
		m.expectQuiet(vm)

		SetVMIStatus(vmi, v1.Running, InGuest("default", "blue"))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))

		changeTemplate(vm, absent)
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blueabsent"}))
		changeTemplate(vm, removed)
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blueabsent"}))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))

		SetVMIStatus(vmi, v1.Running, InGuest("default"))
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default"}))
		Expect(generationsOf(vm)).To(Equal("generation 4 desired 4 observed 4 instance 4"))
		m.expectQuiet(vm)
	})

	It("requires a restart for one that is removed without being absent first", func() {
		vm, vmi := runs()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { WithBlueNetwork(&t.Spec) })
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blue"}))
		SetVMIStatus(vmi, v1.Running, InGuest("default", "blue"))
		changeTemplate(vm, removed)
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blue"}))
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
			"spec: domain.devices.interfaces[blue], networks[blue]"))
	})

	It("takes one back that the guest does not have yet", func() {
		vm, _ := runs()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { WithBlueNetwork(&t.Spec) })
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blue"}))
		changeTemplate(vm, removed)
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blueabsent"}))
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default"}))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 3 instance 3"))
		m.expectQuiet(vm)
	})

	DescribeTable("requires a restart for what can be neither plugged nor migrated in, and names it",
		func(change func(*v1.VirtualMachineInstanceSpec), fields string) {
			vm, _ := m.started(builder.MakeVM("vm").Template(
				builder.MakeVMI("vm").Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
					WithBlueNetwork(&vmi.Spec)
				})))
			SetVMIStatus(InstanceOf(vm), v1.Running, revised(InstanceOf(vm)), InGuest("default", "blue"))
			changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { change(&t.Spec) })
			m.Step(vm)
			Expect(state(vm)).To(Equal([]string{"default", "blue"}))
			Expect(ExpectExists(vm)).To(
				HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", "spec: "+fields))
			Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
			m.expectQuiet(vm)
		},
		Entry("an SR-IOV interface", func(s *v1.VirtualMachineInstanceSpec) {
			addRed(s, v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}})
		}, "domain.devices.interfaces[red], networks[red]"),
		Entry("a masquerade interface", func(s *v1.VirtualMachineInstanceSpec) {
			s.Networks, s.Domain.Devices.Interfaces = s.Networks[1:], s.Domain.Devices.Interfaces[1:]
			addRed(s, v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}})
			s.Networks[1].NetworkSource = v1.NetworkSource{Pod: &v1.PodNetwork{}}
		}, "domain.devices.interfaces[default], domain.devices.interfaces[red], networks[default], networks[red]"),
		Entry("an interface with a binding plugin", func(s *v1.VirtualMachineInstanceSpec) {
			addRed(s, v1.InterfaceBindingMethod{})
			s.Domain.Devices.Interfaces[2].Binding = &v1.PluginBinding{Name: "plugin"}
		}, "domain.devices.interfaces[red], networks[red]"),
		Entry("another network and model of an interface", func(s *v1.VirtualMachineInstanceSpec) {
			s.Networks[1].Multus.NetworkName, s.Domain.Devices.Interfaces[1].Model = "red-net", "e1000"
		}, "domain.devices.interfaces[blue].model"),
		Entry("another binding of an interface", func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces[1].InterfaceBindingMethod = v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}}
		}, "domain.devices.interfaces[blue].bridge, domain.devices.interfaces[blue].sriov"),
		Entry("another model of an interface", func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces[1].Model = "e1000"
		}, "domain.devices.interfaces[blue].model"))

	It("gives its VMI another network for one that it has, and is done once the guest's Pod has the network", func() {
		vm, vmi := m.started(builder.MakeVM("vm").Template(
			builder.MakeVMI("vm").Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
				WithBlueNetwork(&vmi.Spec)
			})))
		SetVMIStatus(vmi, v1.Running, revised(vmi), InGuest("default", "blue"))
		networks := func(name string) map[string]string {
			return map[string]string{
				"k8s.v1.cni.cncf.io/networks":       fmt.Sprintf(`[{"name":%q,"namespace":%q,"interface":%q}]`, name, vmi.Namespace, launcherpod.SecondaryInterface("blue")),
				"k8s.v1.cni.cncf.io/network-status": fmt.Sprintf(`[{"interface":%q}]`, launcherpod.SecondaryInterface("blue")),
			}
		}
		pod, err := podspec.Build(InstanceOf(vm), podspec.Config{LauncherImage: "registry.example/virt-launcher:v1"})
		Expect(err).NotTo(HaveOccurred())
		pod.Annotations = networks("blue-net")
		ExpectCreated(pod)

		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Networks[1].Multus.NetworkName = "red-net"
		})
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Networks[1].Multus.NetworkName).To(Equal("red-net"))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		m.expectQuiet(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))

		By("not migrating")
		SetVMIStatus(vmi, v1.Running,
			WithCondition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse, "RestartRequired", "because"))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", "because"))

		By("migrating after all")
		ExpectExists(pod).Annotations = networks("red-net")
		Expect(K8sClient.Update(ctx, pod)).To(Succeed())
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.Conditions = slices.DeleteFunc(s.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
				return c.Type == v1.VirtualMachineInstanceMigrationRequired
			})
		})
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		m.expectQuiet(vm)
	})

	It("requires a restart for one of a guest without hotplug", func() {
		vm, vmi := m.started(builder.MakeVM("vm").Template(
			builder.MakeVMI("vm").Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Devices.DisableHotplug = true
			})))
		SetVMIStatus(vmi, v1.Running, revised(vmi), InGuest("default"))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { WithBlueNetwork(&t.Spec) })
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default"}))
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
			"spec: domain.devices.interfaces[blue], networks[blue]"))
	})

	It("requires a restart if the guest needs another Pod and does not migrate", func() {
		vm, vmi := runs()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { WithBlueNetwork(&t.Spec) })
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blue"}))
		SetVMIStatus(vmi, v1.Running,
			WithCondition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse, "RestartRequired", "because"))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", "because"))
		m.expectQuiet(vm)
	})

	It("plugs and unplugs them whatever else needs a restart", func() {
		vm, vmi := runs()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Hostname = "other"
			WithBlueNetwork(&t.Spec)
		})
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blue"}))
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", "spec: hostname"))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))

		SetVMIStatus(vmi, v1.Running, InGuest("default", "blue"))
		changeTemplate(vm, absent)
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blueabsent"}))
	})

	DescribeTable("plugs none while its interfaces or hotplug need a restart",
		func(before, now func(*v1.VirtualMachineInstanceSpec), field string) {
			vm, vmi := m.started(builder.MakeVM("vm").Template(
				builder.MakeVMI("vm").Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
					before(&vmi.Spec)
				})))
			SetVMIStatus(vmi, v1.Running, revised(vmi), InGuest("default"))
			changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
				WithBlueNetwork(&t.Spec)
				now(&t.Spec)
			})
			m.Step(vm)
			Expect(state(vm)).To(Equal([]string{"default"}))
			Expect(ExpectExists(vm)).To(
				HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", "spec: "+field))
		},
		Entry("an interface", func(*v1.VirtualMachineInstanceSpec) {}, func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces[0].Model = "e1000"
		}, "domain.devices.interfaces[default].model"),
		Entry("hotplug", func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.DisableHotplug = true },
			func(s *v1.VirtualMachineInstanceSpec) {
				s.Domain.Devices.DisableHotplug = false
			}, "domain.devices.disableHotplug"))

	It("waits for the end of a migration", func() {
		vm, vmi := runs()
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: ptr.To(metav1.Now())}
		})
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusMigrating))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { WithBlueNetwork(&t.Spec) })
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default"}))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState = nil })
		m.Step(vm)
		Expect(state(vm)).To(Equal([]string{"default", "blue"}))
	})
})
