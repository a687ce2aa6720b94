// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("The memory dump of a VirtualMachine", func() {
	It("is made with a volume of the instance, and the VM's spec stays as it is", func() {
		m := newVMHarness()
		config := clusterconfig.Default()
		config.HotplugVolumes = true
		m.Config = FixedConfig{Config: config}
		vm, vmi := m.started(builder.MakeVM("vm").Template(
			builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13")))
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		claim := builder.MakePVC("dump").Namespace(vm.Namespace).Bound("2Gi").Obj()
		status := claim.Status
		ExpectCreated(claim)
		claim.Status = status
		ExpectStatus(claim)
		m.expectQuiet(vm)
		generation := ExpectExists(vm).Generation
		request := func(phase v1.MemoryDumpPhase) {
			GinkgoHelper()
			ExpectExists(vm).Status.MemoryDumpRequest = &v1.VirtualMachineMemoryDumpRequest{
				ClaimName: "dump", Phase: phase, Remove: phase == v1.MemoryDumpDissociating,
			}
			ExpectStatus(vm)
		}
		volume := func(phase v1.VolumePhase) {
			GinkgoHelper()
			SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
				s.VolumeStatus = nil
				if phase != "" {
					s.VolumeStatus = []v1.VolumeStatus{{
						Name: "dump", Phase: phase, HotplugVolume: &v1.HotplugVolumeStatus{},
						MemoryDumpVolume: &v1.DomainMemoryDumpInfo{ClaimName: "dump", TargetFileName: "file",
							EndTimestamp: ptr.To(metav1.Now())},
					}}
				}
			})
		}
		phase := func() v1.MemoryDumpPhase {
			GinkgoHelper()
			return ExpectExists(vm).Status.MemoryDumpRequest.Phase
		}

		request(v1.MemoryDumpAssociating)
		m.Step(vm)
		Expect(ExpectExists(vmi).Spec.UtilityVolumes).To(ConsistOf(And(
			HaveField("Name", "dump"), HaveField("ClaimName", "dump"), HaveField("Type", HaveValue(Equal(v1.MemoryDump))))))
		m.Step(vm)
		Expect(phase()).To(Equal(v1.MemoryDumpInProgress))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(vm.Status.ObservedGeneration).To(Equal(generation))
		m.expectQuiet(vm)
		volume(v1.MemoryDumpVolumeCompleted)
		m.Step(vm)
		Expect(phase()).To(Equal(v1.MemoryDumpUnmounting))
		m.Step(vm)
		Expect(ExpectExists(vmi).Spec.UtilityVolumes).To(BeEmpty())
		Expect(ExpectExists(claim).Annotations).To(HaveKeyWithValue(v1.PVCMemoryDumpAnnotation, "file"))
		m.expectQuiet(vm)
		volume("")
		m.Step(vm)
		Expect(ExpectExists(vm).Status.MemoryDumpRequest).To(And(
			HaveField("Phase", v1.MemoryDumpCompleted), HaveField("FileName", HaveValue(Equal("file"))),
			HaveField("EndTimestamp", Not(BeNil()))))
		Expect(vm).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(vm.Generation).To(Equal(generation))
		m.expectQuiet(vm)

		request(v1.MemoryDumpDissociating)
		m.Step(vm)
		Expect(ExpectExists(vm).Status.MemoryDumpRequest).To(BeNil())
		m.expectQuiet(vm)
	})
})
