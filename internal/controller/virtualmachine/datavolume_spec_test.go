// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine with DataVolumes", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	// templated returns a VM with one DataVolume template, root, from a source.
	templated := func(source cdiv1beta1.DataVolumeSpec) *builder.VM {
		b := builder.MakeVM("vm").Template(builder.MakeVMI("vm").
			Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}))
		return b.With(func(vm *v1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{
				ObjectMeta: metav1.ObjectMeta{Name: "root", Labels: map[string]string{"disk": "first"}}, Spec: source,
			}}
			vm.Spec.Template.Spec.PriorityClassName = "urgent"
		})
	}
	blank := cdiv1beta1.DataVolumeSpec{Source: &cdiv1beta1.DataVolumeSource{Blank: &cdiv1beta1.DataVolumeBlankImage{}}}
	copyOf := func(ns string) cdiv1beta1.DataVolumeSpec {
		return cdiv1beta1.DataVolumeSpec{Source: &cdiv1beta1.DataVolumeSource{
			PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: ns, Name: "golden"},
		}}
	}

	It("creates the DataVolumes, and the VMI when they have succeeded", func() {
		vm := m.create(templated(blank))
		m.Step(vm)
		Expect(m.events.Take()).To(ConsistOf("Normal SuccessfulDataVolumeCreate: Created DataVolume root"))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusProvisioning))
		dv := ExpectExists(DataVolume(m.ns, "root"))
		Expect(metav1.IsControlledBy(dv, vm)).To(BeTrue())
		Expect(dv.Labels).To(Equal(map[string]string{"disk": "first", v1.CreatedByLabel: string(vm.UID)}))
		Expect(dv.Annotations).To(HaveKeyWithValue("cdi.kubevirt.io/allowClaimAdoption", "true"))
		Expect(specOf(dv).PriorityClassName).To(Equal("urgent"))
		Expect(dv.Spec.Source).To(Equal(blank.Source))
		m.expectQuiet(vm)

		FillDataVolume(dv, "ImportInProgress")
		m.expectQuiet(vm)
		ExpectGone(InstanceKey(vm))
		FillDataVolume(dv, cdi.DataVolumeSucceeded)
		m.Step(vm)
		Expect(metav1.IsControlledBy(InstanceOf(vm), vm)).To(BeTrue())
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
	})

	It("creates the DataVolumes of a Halted VM too, and shows Provisioning until they have succeeded", func() {
		vm := m.create(templated(blank).Strategy(v1.RunStrategyHalted))
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusProvisioning))
		FillDataVolume(DataVolume(m.ns, "root"), cdi.DataVolumeSucceeded)
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		ExpectGone(InstanceKey(vm))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("creates the DataVolumes at the first start if the annotation for immediate creation is false", func() {
		vm := m.create(templated(blank).Strategy(v1.RunStrategyManual).With(func(vm *v1.VirtualMachine) {
			vm.Annotations = map[string]string{v1.ImmediateDataVolumeCreation: "false"}
		}))
		m.Settle(vm)
		ExpectGone(DataVolume(m.ns, "root"))
		Expect(callVerb(vm, "start", `{"paused":true}`)).To(Succeed())
		m.Step(vm)
		ExpectGone(InstanceKey(vm))
		FillDataVolume(DataVolume(m.ns, "root"), cdi.DataVolumeSucceeded)
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.StartStrategy).To(HaveValue(Equal(v1.StartStrategyPaused)))
	})

	It("creates the VMI when the DataVolumes wait for a consumer, and shows that the claim is not bound", func() {
		vm := m.create(templated(blank))
		m.Step(vm)
		dv := DataVolume(m.ns, "root")
		ProvideClaim(ExpectExists(dv), false)
		FillDataVolume(dv, cdi.DataVolumePendingPopulation)
		m.Step(vm)
		Expect(metav1.IsControlledBy(InstanceOf(vm), vm)).To(BeTrue())
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusWaitingForVolumeBinding))
	})

	It("records one event for a failed import", func() {
		vm := m.create(templated(blank))
		m.Step(vm)
		m.events.Take()
		dv := DataVolume(m.ns, "root")
		FillDataVolume(dv, "ImportInProgress",
			DataVolumeCondition(cdi.DataVolumeRunning, corev1.ConditionFalse, "Error", "404 not found"))
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusDataVolumeError))
		FillDataVolume(dv, "ImportInProgress")
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusProvisioning))
		FillDataVolume(dv, cdi.DataVolumeFailed)
		m.Step(vm)
		Expect(m.events.Take()).To(ConsistOf("Warning FailedDataVolumeImport: DataVolume root failed to import disk image"))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusDataVolumeError))
		m.expectQuiet(vm)
	})

	It("reports a DataVolume that exceeds a quota", func() {
		vm := m.create(templated(blank))
		m.Step(vm)
		m.events.Take()
		FillDataVolume(DataVolume(m.ns, "root"), cdi.DataVolumePending,
			DataVolumeCondition(cdi.DataVolumeBound, corev1.ConditionUnknown, "ErrExceededQuota", "exceeded quota"))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate", "exceeded quota"))
		Expect(m.events.Take()).To(
			ConsistOf(HavePrefix("Warning FailedDataVolumeImport: DataVolume root exceeds quota limits")))
		m.expectQuiet(vm)
	})

	It("adopts a DataVolume without an owner, and does not touch one with an owner", func() {
		dv := DataVolume(m.ns, "root")
		ExpectCreated(dv)
		vm := m.create(templated(blank))
		m.Step(vm)
		Expect(metav1.IsControlledBy(ExpectExists(dv), vm)).To(BeTrue())
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusProvisioning))
		m.expectQuiet(vm)

		other := builder.MakeVM("other").UID("6a1a24a1-4061-4607-8bf4-000000000000").Obj()
		dv.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(other, v1.VirtualMachineGroupVersionKind)}
		Expect(K8sClient.Update(ctx, dv)).To(Succeed())
		m.expectQuiet(vm)
	})

	It("reports what to install in a cluster without an importer", func() {
		m.DataVolumes = NoDataVolumes{}
		vm := m.create(templated(blank))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate",
			"install the Containerized Data Importer (CDI)"))
		Expect(m.events.Take()).To(ConsistOf(HavePrefix("Warning FailedDataVolumeCreate: Error creating DataVolume root: ")))
		m.expectQuiet(vm)
		ExpectGone(InstanceKey(vm))
	})

	It("clones within the namespace without an access review, and warns of a missing source", func() {
		vm := m.create(templated(copyOf("")))
		m.Step(vm)
		Expect(m.events.Take()).To(ConsistOf(
			"Warning SourcePVCNotAvailabe: Source PVC golden not available: Target PVC root will remain unpopulated until source is created",
			"Normal SuccessfulDataVolumeCreate: Created DataVolume root"))
		Expect(ExpectExists(DataVolume(m.ns, "root")).Spec.Source.PVC.Namespace).To(Equal(m.ns))
	})

	Context("cloned from a DataSource", func() {
		const label = "template.kubevirt.io/architecture"
		from := func(name, arch string) {
			GinkgoHelper()
			source := &cdi.DataSource{
				ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: name},
				Spec: cdi.DataSourceSpec{Source: cdi.DataSourceSource{
					PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: m.ns, Name: "golden"},
				}},
			}
			if arch != "" {
				source.Labels = map[string]string{label: arch}
			}
			ExpectCreated(source)
		}
		// standsFor creates a DataSource that refers to another one, with the status that the importer writes.
		standsFor := func(name, other string) {
			GinkgoHelper()
			source := &cdi.DataSource{
				ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: name, Labels: map[string]string{label: "s390x"}},
				Spec: cdi.DataSourceSpec{Source: cdi.DataSourceSource{DataSource: &cdi.DataSourceReference{Namespace: m.ns,
					Name: other}}},
			}
			ExpectCreated(source)
			source.Status.Source.PVC = &cdiv1beta1.DataVolumeSourcePVC{Namespace: m.ns, Name: "golden"}
			Expect(K8sClient.Status().Update(ctx, source)).To(Succeed())
		}
		// copies returns a VM with one disk from each DataSource.
		copies := func(names ...string) *builder.VM {
			return builder.MakeVM("vm").With(func(vm *v1.VirtualMachine) {
				vm.Spec.Template.Spec.Architecture = ""
				for _, name := range names {
					vm.Spec.DataVolumeTemplates = append(vm.Spec.DataVolumeTemplates, v1.DataVolumeTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{
							Name: "disk-of-" + name, Labels: map[string]string{label: "s390x"},
							Annotations: map[string]string{"kubevirt.io/source-architecture": "s390x"},
						},
						Spec: cdiv1beta1.DataVolumeSpec{SourceRef: &cdiv1beta1.DataVolumeSourceRef{Kind: "DataSource", Name: name}},
					})
				}
			})
		}
		started := func(vm *v1.VirtualMachine) *v1.VirtualMachineInstance {
			GinkgoHelper()
			m.Step(vm)
			ExpectGone(InstanceKey(vm))
			for i := range vm.Spec.DataVolumeTemplates {
				FillDataVolume(DataVolume(m.ns, vm.Spec.DataVolumeTemplates[i].Name), cdi.DataVolumeSucceeded)
			}
			m.Step(vm)
			return InstanceOf(vm)
		}

		It("sets the VMI's architecture from the DataSource's label at the creation of the disk, and does not change the VM",
			func() {
				from("debian", "arm64")
				vm := m.create(copies("debian"))
				m.Step(vm)
				ExpectExists(DataVolume(m.ns, "disk-of-debian"))
				relabel := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+label+`":"amd64"}}}`))
				Expect(K8sClient.Patch(ctx, &cdi.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: "debian"}},
					relabel)).To(Succeed())
				Expect(started(vm).Spec.Architecture).To(Equal("arm64"))
				Expect(ExpectExists(vm).Spec.Template.Spec.Architecture).To(BeEmpty())
				m.events.Take()
				m.expectQuiet(vm)
			})

		It("uses the first DataSource whose label is a supported architecture", func() {
			from("none", "")
			from("odd", "x86_64")
			from("debian", "arm64")
			from("fedora", "amd64")
			Expect(started(m.create(copies("none", "odd", "debian", "fedora"))).Spec.Architecture).To(Equal("arm64"))
		})

		It("leaves the architecture empty if no DataSource has the label, whatever the template's metadata contains", func() {
			from("none", "")
			Expect(started(m.create(copies("none"))).Spec.Architecture).To(BeEmpty())
		})

		It("prefers the architecture of the VM's template", func() {
			from("debian", "arm64")
			vm := copies("debian").With(func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Architecture = "amd64" })
			Expect(started(m.create(vm)).Spec.Architecture).To(Equal("amd64"))
		})

		It("reads the label of the DataSource that another one refers to, and waits until it exists", func() {
			standsFor("stable", "debian")
			vm := m.create(copies("stable"))
			Expect(m.Step(vm)).NotTo(BeZero())
			Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate",
				"get DataSource "+m.ns+"/debian"))
			ExpectGone(DataVolume(m.ns, "disk-of-stable"))
			from("debian", "arm64")
			Expect(started(vm).Spec.Architecture).To(Equal("arm64"))
		})
	})

	Context("cloned from another namespace", func() {
		var elsewhere string
		BeforeEach(func() {
			elsewhere = NewNamespace()
			ExpectCreated(builder.MakePVC("golden").Namespace(elsewhere).Obj())
		})
		permit := func(account, group, resource string) {
			GinkgoHelper()
			name := metav1.ObjectMeta{Namespace: elsewhere, Name: "cloner"}
			ExpectCreated(&rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"create"},
			}}}, &rbacv1.RoleBinding{
				ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "cloner"},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: m.ns, Name: account}},
			})
		}
		// expectCreates reconciles until the VM's DataVolume exists: the API server's authorizer learns of roles later.
		expectCreates := func(vm *v1.VirtualMachine) *cdi.DataVolume {
			GinkgoHelper()
			dv := DataVolume(m.ns, "root")
			Eventually(func() error {
				m.Step(vm)
				return K8sClient.Get(ctx, client.ObjectKeyFromObject(dv), dv)
			}, "10s").Should(Succeed())
			return dv
		}
		source := func(namespace string) cdiv1beta1.DataVolumeSpec {
			ExpectCreated(&cdi.DataSource{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "debian"},
				Spec: cdi.DataSourceSpec{Source: cdi.DataSourceSource{
					PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: elsewhere, Name: "golden"},
				}},
			})
			return cdiv1beta1.DataVolumeSpec{SourceRef: &cdiv1beta1.DataVolumeSourceRef{
				Kind: "DataSource", Namespace: ptr.To(namespace), Name: "debian",
			}}
		}

		It("creates no DataVolume until the service account may clone the source", func() {
			vm := m.create(templated(copyOf(elsewhere)))
			Expect(m.Step(vm)).NotTo(BeZero())
			const refused = "User system:serviceaccount:%s:default has insufficient permissions in clone source namespace "
			Expect(m.events.Take()).To(
				ConsistOf(And(HavePrefix("Warning UnauthorizedDataVolumeCreate: Not authorized to create DataVolume root: "),
					HaveSuffix(refused+elsewhere, m.ns))))
			Expect(ExpectExists(vm)).To(
				HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate", "insufficient permissions"))
			ExpectGone(DataVolume(m.ns, "root"))
			const review = "create SubjectAccessReview"
			m.ExpectBudget(vm, review, review) // The access is reviewed again, and the VM is steady.
			Expect(m.events.Take()).To(BeEmpty())

			permit("default", "cdi.kubevirt.io", "datavolumes/source")
			expectCreates(vm)
			Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
		})

		// refused returns the events of a VM whose DataVolume is not created, and deletes the VM.
		refused := func(spec cdiv1beta1.DataVolumeSpec) []string {
			GinkgoHelper()
			vm := m.create(templated(spec))
			Expect(m.Step(vm).RequeueAfter).To(Equal(15 * time.Second))
			ExpectGone(DataVolume(m.ns, "root"))
			forget := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			Expect(K8sClient.Patch(ctx, vm, forget)).To(Succeed())
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
			return m.events.Take()
		}

		It("reports the same for an existing and a missing source if the service account may not clone it", func() {
			named := func(name string) cdiv1beta1.DataVolumeSpec {
				return cdiv1beta1.DataVolumeSpec{Source: &cdiv1beta1.DataVolumeSource{
					PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: elsewhere, Name: name},
				}}
			}
			recorded := map[string][]string{"golden": refused(named("golden")), "nowhere": refused(named("nowhere"))}
			Expect(recorded["nowhere"]).To(Equal(recorded["golden"]))
			Expect(recorded["golden"]).To(ConsistOf(ContainSubstring("insufficient permissions")))
		})

		It("reports the same for any DataSource if the service account may clone nothing of its namespace", func() {
			named := func(name string, source cdi.DataSourceSource) cdiv1beta1.DataVolumeSpec {
				GinkgoHelper()
				ExpectCreated(&cdi.DataSource{
					ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere, Name: name}, Spec: cdi.DataSourceSpec{Source: source},
				})
				return cdiv1beta1.DataVolumeSpec{SourceRef: &cdiv1beta1.DataVolumeSourceRef{Kind: "DataSource",
					Namespace: &elsewhere, Name: name}}
			}
			missing := cdiv1beta1.DataVolumeSpec{SourceRef: &cdiv1beta1.DataVolumeSourceRef{Kind: "DataSource",
				Namespace: &elsewhere, Name: "missing"}}
			want := refused(source(elsewhere))
			Expect(want).To(ConsistOf(HaveSuffix("insufficient permissions in clone source namespace " + elsewhere)))
			Expect(refused(missing)).To(Equal(want))
			Expect(refused(named("empty", cdi.DataSourceSource{}))).To(Equal(want))
			Expect(refused(named("other", cdi.DataSourceSource{
				PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: NewNamespace(), Name: "golden"},
			}))).To(Equal(want), "the namespace of its source")
			permit("default", "cdi.kubevirt.io", "datavolumes/source")
			Eventually(func() []string { return refused(missing) }).WithTimeout(10 * time.Second).
				Should(ConsistOf(ContainSubstring("get DataSource " + elsewhere + "/missing")))
		})

		It("does not skip the access review because of an annotation", func() {
			vm := m.create(templated(copyOf(elsewhere)).With(func(vm *v1.VirtualMachine) {
				vm.Spec.DataVolumeTemplates[0].Annotations = map[string]string{"cdi.kubevirt.io/storage.prePopulated": "root"}
			}))
			m.Step(vm)
			ExpectGone(DataVolume(m.ns, "root"))
		})

		DescribeTable("reviews the access of the VM's service account", func(named, ofVolume string) {
			permit("robot", "", "pods")
			b := templated(copyOf(elsewhere)).With(func(vm *v1.VirtualMachine) {
				vm.Spec.Template.Spec.ServiceAccountName = named
				vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes,
					v1.Volume{Name: "account", VolumeSource: v1.VolumeSource{
						ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: ofVolume},
					}})
			})
			expectCreates(m.create(b))
		},
			Entry("from a volume", "", "robot"),
			Entry("from serviceAccountName, which has precedence over a volume", "robot", "other"),
		)

		It("replaces a DataSource by its source, and reviews access to that source", func() {
			spec := source(m.ns)
			vm := m.create(templated(spec))
			m.Step(vm)
			ExpectGone(DataVolume(m.ns, "root"))
			permit("default", "cdi.kubevirt.io", "datavolumes/source")
			dv := expectCreates(vm)
			Expect(dv.Spec.SourceRef).To(BeNil())
			Expect(dv.Spec.Source.PVC).To(HaveValue(Equal(cdiv1beta1.DataVolumeSourcePVC{Namespace: elsewhere, Name: "golden"})))
		})

		It("reports a missing DataSource, and retries", func() {
			vm := m.create(templated(
				cdiv1beta1.DataVolumeSpec{SourceRef: &cdiv1beta1.DataVolumeSourceRef{Kind: "DataSource", Name: "debian"}}))
			Expect(m.Step(vm)).NotTo(BeZero())
			Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate",
				"get DataSource "+m.ns+"/debian"))
			ExpectGone(DataVolume(m.ns, "root"))
			Expect(m.events.Take()).To(ConsistOf(HavePrefix("Warning FailedDataVolumeCreate: ")))
		})
	})
})

// specOf returns the whole spec of a DataVolume, of which package cdi decodes a part.
func specOf(dv *cdi.DataVolume) cdiv1beta1.DataVolumeSpec {
	GinkgoHelper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(cdi.GroupVersion.WithKind("DataVolume"))
	Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(dv), object)).To(Succeed())
	var read struct {
		Spec cdiv1beta1.DataVolumeSpec `json:"spec"`
	}
	Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read)).To(Succeed())
	return read.Spec
}
