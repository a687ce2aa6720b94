// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine that infers its instance type from a snapshot", Ordered, func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	labels := map[string]string{
		"instancetype.kubevirt.io/default-instancetype":      "small",
		"instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype",
	}
	snapshot := func(ns string, labels map[string]string) *unstructured.Unstructured {
		GinkgoHelper()
		made := &unstructured.Unstructured{}
		made.SetGroupVersionKind(
			schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshot"})
		made.SetNamespace(ns)
		made.SetName("golden")
		made.SetLabels(labels)
		ExpectCreated(made)
		return made
	}
	inferring := func(spec cdiv1beta1.DataVolumeSpec) *v1.VirtualMachine {
		GinkgoHelper()
		root := builder.MakeVMI("vm").Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}})
		return m.create(builder.MakeVM("vm").Template(root).With(func(vm *v1.VirtualMachine) {
			vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root"}
			vm.Spec.Template.Spec.Domain.CPU, vm.Spec.Template.Spec.Domain.Memory = nil, nil
			vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root"}, Spec: spec}}
		}))
	}
	of := func(ns string) cdiv1beta1.DataVolumeSpec {
		return cdiv1beta1.DataVolumeSpec{
			Source: &cdiv1beta1.DataVolumeSource{Snapshot: &cdiv1beta1.DataVolumeSourceSnapshot{Namespace: ns, Name: "golden"}}}
	}
	// expectWaits reconciles, and expects a failure and another try.
	expectWaits := func(vm *v1.VirtualMachine, message string) {
		GinkgoHelper()
		Expect(m.Step(vm).RequeueAfter).NotTo(BeZero(), "snapshots are not watched")
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedFindInstancetype", message))
		Expect(vm.Status.InstancetypeRef).To(BeNil())
	}
	expectInferred := func(vm *v1.VirtualMachine) {
		GinkgoHelper()
		m.Step(vm)
		Expect(ExpectExists(vm).Status.InstancetypeRef).To(HaveField("Name", "small"))
	}

	It("waits for a snapshot in a cluster without snapshots, until there is one", func() {
		UninstallVolumeSnapshots()
		var err error
		m.APIReader, err = client.New(ControllerConfig, client.Options{Scheme: scheme.Scheme}) // which does not know the kind
		Expect(err).NotTo(HaveOccurred())
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := inferring(of(m.ns))
		missing := "get VolumeSnapshot " + m.ns + `/golden: volumesnapshots.snapshot.storage.k8s.io "golden" not found`
		expectWaits(vm, missing)
		InstallVolumeSnapshots()
		expectWaits(vm, missing)
		snapshot(m.ns, labels)
		expectInferred(vm)
	})

	It("reads the labels of the snapshot of a DataSource", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		named := &cdi.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: "image"}}
		named.Spec.Source.Snapshot = &cdiv1beta1.DataVolumeSourceSnapshot{Namespace: m.ns, Name: "golden"}
		ExpectCreated(named)
		golden := snapshot(m.ns, nil)
		vm := inferring(cdiv1beta1.DataVolumeSpec{SourceRef: &cdiv1beta1.DataVolumeSourceRef{Kind: "DataSource",
			Name: "image"}})
		m.Step(vm)
		Expect(ExpectExists(vm).Status.InstancetypeRef).To(BeNil())
		Expect(vm).To(haveNoVMCondition(v1.VirtualMachineFailure), "its claim may get labels when it is filled")

		ExpectExists(golden).SetLabels(labels)
		Expect(K8sClient.Update(ctx, golden)).To(Succeed())
		expectInferred(vm)
	})

	It("reads a snapshot of another namespace only if it may copy it", func() {
		golden := NewNamespace()
		snapshot(golden, labels)
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := inferring(of(golden))
		expectWaits(vm, "ServiceAccount default has insufficient permissions in clone source namespace "+golden)
		allowCopies(golden, m.ns)
		Eventually(func() *v1.InstancetypeStatusRef {
			m.Step(vm)
			return ExpectExists(vm).Status.InstancetypeRef
		}).Should(HaveField("Name", "small"))
	})
})

// allowCopies allows VMs of a namespace to copy claims and snapshots of another one.
func allowCopies(from, to string) {
	GinkgoHelper()
	ExpectCreated(&rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: from, Name: "copies"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"cdi.kubevirt.io"}, Resources: []string{"datavolumes/source"},
			Verbs: []string{"create"}}},
	}, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: from, Name: "copies"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "copies"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: to, Name: "default"}},
	})
}
