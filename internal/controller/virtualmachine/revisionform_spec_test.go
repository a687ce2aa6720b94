// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/revisiondata"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("The revision of a VirtualMachine's start", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	awkward := func() *builder.VM {
		return builder.MakeVM("vm").Template(builder.MakeVMI("vm").Volume("init", v1.VolumeSource{
			CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config\n# <a> & \"b\" \u2028 ü\n"},
		})).With(func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1<<53 + 1))
			vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 2, Cores: 1}
		})
	}
	patch := func(revision *appsv1.ControllerRevision, body string) error {
		return K8sClient.Patch(ctx, revision.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(body)))
	}

	It("can be orphaned by the garbage collector and labeled", func() {
		vm, _ := m.started(awkward())
		revision := m.revisions(vm)[0]
		Expect(patch(&revision, `{"metadata":{"labels":{"team":"blue"}}}`)).To(Succeed())
		Expect(RemoveOwner(&revision, vm)).To(Succeed())
		Expect(ExpectExists(&revision).OwnerReferences).To(BeEmpty())
		Expect(revision.Labels).To(HaveKeyWithValue("team", "blue"))
	})

	// unsorted replaces a VM's revision by one whose keys have the order of the fields of Go's struct.
	unsorted := func(vm *v1.VirtualMachine) *appsv1.ControllerRevision {
		GinkgoHelper()
		revision := m.revisions(vm)[0]
		Expect(K8sClient.Delete(ctx, &revision)).To(Succeed())
		raw, err := json.Marshal(map[string]v1.VirtualMachineSpec{"spec": vm.Spec})
		Expect(err).NotTo(HaveOccurred())
		old := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: raw}, Revision: revision.Revision}
		old.Namespace, old.Name, old.Labels, old.OwnerReferences = revision.Namespace, revision.Name, revision.Labels,
			revision.OwnerReferences
		ExpectCreated(old)
		Expect(RemoveOwner(old, vm)).To(MatchError(ContainSubstring("field is immutable")),
			"the API server accepts an unsorted revision: this spec has nothing to test")
		return old
	}
	expectReplaced := func(vm *v1.VirtualMachine, old *appsv1.ControllerRevision) {
		GinkgoHelper()
		found := m.revisions(vm)
		Expect(found).To(HaveLen(1))
		Expect(found[0].Name).To(Equal(old.Name))
		Expect(found[0].UID).NotTo(Equal(old.UID))
		Expect(found[0].Revision).To(Equal(old.Revision))
		Expect(metav1.IsControlledBy(&found[0], vm)).To(BeTrue())
		data := map[string]v1.VirtualMachineSpec{}
		Expect(json.Unmarshal(found[0].Data.Raw, &data)).To(Succeed())
		Expect(data["spec"]).To(Equal(vm.Spec))
		Expect(RemoveOwner(&found[0], vm)).To(Succeed())
	}

	It("is replaced by one of the same name and content if its keys are not sorted", func() {
		vm, _ := m.started(awkward())
		old := unsorted(vm)
		// A copy exists while the name is free: at each step one revision has the content.
		m.ExpectOrder(vm, createVMRevision, deleteVMRevision, createVMRevision, deleteVMRevision)
		m.expectQuiet(vm)
		expectReplaced(vm, old)
	})

	It("gets the annotation if it lacks it and its keys are sorted, as KubeVirt's are", func() {
		vm, _ := m.started(awkward())
		revision := m.revisions(vm)[0]
		Expect(patch(&revision, `{"metadata":{"annotations":null}}`)).To(Succeed())
		m.Step(vm)
		found := m.revisions(vm)
		Expect(found).To(ConsistOf(HaveField("UID", revision.UID)))
		Expect(revisiondata.IsSorted(&found[0])).To(BeTrue())
		m.expectQuiet(vm)
	})

	DescribeTable("is not lost when a write of the replacement fails", func(writes int) {
		vm, _ := m.started(awkward())
		old := unsorted(vm)
		m.Writes.Fail = func(string) error {
			if writes--; writes < 0 {
				return ErrInjected
			}
			return nil
		}
		_, err := m.Try(vm)
		Expect(err).To(MatchError(ErrInjected))
		m.Writes.Fail = nil
		m.Settle(vm)
		expectReplaced(vm, old)
		m.expectQuiet(vm)
	},
		Entry("before the copy", 0), Entry("after the copy", 1), Entry("after the deletion of the original", 2), Entry("before the copy is removed", 3),
	)

	It("is replaced while the VM is being deleted with propagation policy Orphan", func() {
		vm, _ := m.started(awkward())
		old := unsorted(vm)
		Expect(K8sClient.Delete(ctx, vm, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
		m.Step(vm)
		expectReplaced(vm, old)
	})
})
