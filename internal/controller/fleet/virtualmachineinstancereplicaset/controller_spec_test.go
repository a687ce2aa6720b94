// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset_test

import (
	"slices"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/fleet/virtualmachineinstancereplicaset"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const (
	replicaFailure = v1.VirtualMachineInstanceReplicaSetReplicaFailure
	replicaPaused  = v1.VirtualMachineInstanceReplicaSetReplicaPaused
)

var _ = Describe("VirtualMachineInstanceReplicaSet", func() {
	var r *replicaSets

	BeforeEach(func() { r = newReplicaSets() })

	Describe("creating VMIs", func() {
		It("creates them from its template, with one write each and one for the status", func() {
			set := r.create(builder.MakeReplicaSet("web").Replicas(3).
				Template(builder.MakeVMI("").Annotation("from", "template").Label("app", "x")))
			r.ExpectBudget(set, createVMI, createVMI, createVMI, patchSetStatus)
			Expect(r.events.Take()).To(HaveEach(MatchRegexp(
				`^Normal SuccessfulCreate: Started the virtual machine by creating the new virtual machine instance web.{5}$`)))
			r.expectQuiet(set)

			vmis := r.list()
			Expect(vmis).To(HaveLen(3))
			for i := range vmis {
				Expect(vmis[i].Name).To(MatchRegexp(`^web[a-z0-9]{5}$`))
				Expect(vmis[i].GenerateName).To(Equal("web"))
				Expect(vmis[i].Labels).To(Equal(map[string]string{"app": "x", builder.SetLabel: "web"}))
				Expect(vmis[i].Annotations).To(Equal(map[string]string{"from": "template"}))
				Expect(vmis[i].OwnerReferences).To(Equal([]metav1.OwnerReference{
					*metav1.NewControllerRef(set, v1.VirtualMachineInstanceReplicaSetGroupVersionKind),
				}))
				Expect(vmis[i].Spec.Domain.CPU.Cores).To(BeEquivalentTo(1))
			}
			Expect(ExpectExists(set)).To(And(haveReplicas(3, 0), haveNoSetConditions()))
			Expect(set.Status.LabelSelector).To(Equal("set=web"))
		})

		It("counts the ready ones, and writes nothing without a change", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(2))
			Expect(set).To(haveReplicas(2, 2))
			r.expectQuiet(set)
			SetVMIStatus(&vmis[0], v1.Running,
				WithCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "GuestNotRunning", ""))
			r.Step(set)
			Expect(ExpectExists(set)).To(haveReplicas(2, 1))
		})

		It("creates at most 250 in one reconciliation", func() {
			set := r.create(builder.MakeReplicaSet("web").Replicas(252))
			r.Step(set)
			Expect(r.list()).To(HaveLen(250))
			r.Step(set)
			r.ExpectSteady(set)
			Expect(ExpectExists(set)).To(haveReplicas(252, 0))
		})

		It("scales up to 6 and down again", func() {
			set, _ := r.running(builder.MakeReplicaSet("web").Replicas(1))
			r.scale(set, 6)
			r.Step(set)
			Expect(r.list()).To(HaveLen(6))
			r.ExpectSteady(set)
			r.scale(set, 1)
			r.Step(set)
			Expect(r.list()).To(HaveLen(1))
			r.ExpectSteady(set)
			r.scale(set, 0)
			r.Step(set)
			Expect(r.list()).To(BeEmpty())
		})
	})

	Describe("the scale subresource", func() {
		It("returns replicas and selector for an autoscaler, and accepts its number", func() {
			set, _ := r.running(builder.MakeReplicaSet("web").Replicas(2))
			scale := &autoscalingv1.Scale{}
			Expect(K8sClient.SubResource("scale").Get(ctx, set, scale)).To(Succeed())
			Expect(scale.Spec.Replicas).To(BeEquivalentTo(2))
			Expect(scale.Status.Replicas).To(BeEquivalentTo(2))
			Expect(scale.Status.Selector).To(Equal("set=web"))

			scale.Spec.Replicas = 4
			Expect(K8sClient.SubResource("scale").Update(ctx, set, client.WithSubResourceBody(scale))).To(Succeed())
			r.Step(set)
			Expect(K8sClient.SubResource("scale").Get(ctx, set, scale)).To(Succeed())
			Expect(scale.Status.Replicas).To(BeEquivalentTo(4))
		})

		It("is optional: a set without replicas has one VMI", func() {
			set := r.create(builder.MakeReplicaSet("web").With(
				func(set *v1.VirtualMachineInstanceReplicaSet) { set.Spec.Replicas = nil }))
			r.Step(set)
			Expect(r.list()).To(HaveLen(1))
			r.ExpectSteady(set)
		})

		It("refuses a negative number", func() {
			set := r.create(builder.MakeReplicaSet("web"))
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":-1}}`))
			Expect(apierrors.IsInvalid(K8sClient.SubResource("scale").Patch(ctx, set, patch))).To(BeTrue())
		})
	})

	Describe("a stale cache", func() {
		It("does not contain the created VMIs: no more are created", func() {
			set := r.create(builder.MakeReplicaSet("web").Replicas(3))
			r.Writes.StaleList = &v1.VirtualMachineInstanceList{}
			r.Writes.Stale = ExpectExists(set).DeepCopy()
			r.Step(set)
			before := namesOf(r.list())
			Expect(before).To(HaveLen(3))
			for range 3 {
				_, err := r.Try(set)
				Expect(err).NotTo(HaveOccurred())
			}
			Expect(r.Writes.Take()).NotTo(ContainElement(createVMI))
			Expect(namesOf(r.list())).To(Equal(before))
		})

		It("does not contain the deletions: no more are deleted, though others would be chosen now", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(5))
			r.addFinalizers()
			r.Writes.StaleList = &v1.VirtualMachineInstanceList{Items: r.list()}
			r.scale(set, 2)
			r.Step(set)
			left := r.notDeleted()
			Expect(left).To(HaveLen(2))

			// Another VMI is now first in the order of removal, in the cache as well.
			stale := r.Writes.StaleList.(*v1.VirtualMachineInstanceList)
			for i := range stale.Items {
				if stale.Items[i].Name == left[0].Name {
					stale.Items[i].Status.Conditions = nil
				}
			}
			SetVMIStatus(&left[0], v1.Running,
				WithCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "GuestNotRunning", ""))
			_, err := r.Try(set)
			Expect(err).NotTo(HaveOccurred())
			Expect(r.Writes.Take()).NotTo(ContainElement(deleteVMI))
			Expect(namesOf(r.notDeleted())).To(Equal(namesOf(left)))
			Expect(vmis).To(HaveLen(5))
		})

		It("contains a VMI that is gone: it is replaced once", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(2))
			Expect(K8sClient.Delete(ctx, &vmis[0])).To(Succeed())
			r.Writes.StaleList = &v1.VirtualMachineInstanceList{Items: vmis}
			r.expectQuiet(set) // the VMI's event triggers the next reconciliation
			r.Writes.StaleList = &v1.VirtualMachineInstanceList{Items: vmis[1:]}
			for range 3 {
				_, err := r.Try(set)
				Expect(err).NotTo(HaveOccurred())
			}
			Expect(r.list()).To(HaveLen(2))
		})
	})

	It("creates no more than replicas with concurrent reconciliations", func() {
		set := r.create(builder.MakeReplicaSet("web").Replicas(20))
		var group sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			other := Steps{Writes: NewWrites()}
			other.Of = &virtualmachineinstancereplicaset.Reconciler{Client: other.Writes, APIReader: AsController,
				Recorder: r.events}
			group.Go(func() { _, errs[i] = other.Try(set) })
		}
		group.Wait()
		for _, err := range errs {
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(r.list()).To(HaveLen(20))
		Expect(r.events.Take()).To(HaveLen(20), "one event for each VMI")
		_, err := r.Try(set)
		Expect(err).NotTo(HaveOccurred())
		Expect(r.list()).To(HaveLen(20))
	})

	It("uses another name if a VMI that it does not own has the generated one", func() {
		set := r.create(builder.MakeReplicaSet("web").Replicas(0))
		r.scale(set, 1)
		r.Step(set)
		taken := r.list()[0].DeepCopy()
		Expect(K8sClient.Delete(ctx, taken)).To(Succeed())
		foreign := builder.MakeVMI(taken.Name).Namespace(r.ns).Obj()
		ExpectCreated(foreign)

		r.Writes.StaleList = &v1.VirtualMachineInstanceList{}
		r.Step(set)
		Expect(ExpectExists(foreign).OwnerReferences).To(BeEmpty())
		Expect(r.list()).To(HaveLen(2))
	})

	Describe("scaling down", func() {
		It("deletes those first that do not run or are not ready, according to the API server", func() {
			set, _ := r.running(builder.MakeReplicaSet("web").Replicas(4))
			vmis := r.list()
			SetVMIStatus(&vmis[1], v1.Running,
				WithCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "GuestNotRunning", ""))
			SetVMIStatus(&vmis[2], v1.Scheduling, func(s *v1.VirtualMachineInstanceStatus) { s.Conditions = nil })
			r.scale(set, 3)
			r.Step(set)
			ExpectGone(&vmis[2])
			Expect(r.events.Take()).To(
				ConsistOf("Normal SuccessfulDelete: Stopped the virtual machine by deleting the virtual machine instance " +
					string(vmis[2].UID)))
			r.scale(set, 2)
			r.Step(set)
			ExpectGone(&vmis[1])
			Expect(ExpectExists(set)).To(haveReplicas(2, 2))
		})

		It("does not delete one that lost its label meanwhile", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(2))
			SetVMIStatus(&vmis[0], v1.Running,
				WithCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "GuestNotRunning", ""))
			r.scale(set, 1)
			r.Writes.Fail = func(request string) error {
				if request == deleteVMI {
					label(&vmis[0], "")
				}
				return nil
			}
			again, err := r.Try(set)
			Expect(err).NotTo(HaveOccurred())
			Expect(again).NotTo(BeZero())
			Expect(ExpectExists(&vmis[0]).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(set)).To(haveNoSetConditions(), "a conflict is no failure")
		})
	})

	Describe("finished VMIs", func() {
		It("are replaced and deleted", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(3))
			SetVMIStatus(&vmis[0], v1.Failed)
			SetVMIStatus(&vmis[1], v1.Succeeded)
			r.Step(set)
			Expect(r.events.Take()).To(ContainElements(
				"Normal SuccessfulDelete: Deleted finished virtual machine: "+string(vmis[0].UID),
				"Normal SuccessfulDelete: Deleted finished virtual machine: "+string(vmis[1].UID)))
			Expect(ExpectExists(set)).To(haveReplicas(3, 1))
			Expect(namesOf(r.list())).NotTo(ContainElements(vmis[0].Name, vmis[1].Name))
			r.expectQuiet(set)
		})

		It("are replaced before their Pods are gone", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(1))
			r.addFinalizers()
			SetVMIStatus(&vmis[0], v1.Failed)
			r.Step(set)
			Expect(r.list()).To(HaveLen(2))
			Expect(r.notDeleted()).To(HaveLen(1))
			r.ExpectSteady(set)
		})

		It("do not include those in phase Unknown", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(1))
			SetVMIStatus(&vmis[0], v1.Unknown, func(s *v1.VirtualMachineInstanceStatus) {
				vmistatus.SetCondition(s, v1.VirtualMachineInstanceCondition{
					Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionUnknown, Reason: node.ReasonNodeUnresponsive,
				}, metav1.Now())
			})
			r.Step(set)
			Expect(namesOf(r.list())).To(Equal(namesOf(vmis)))
			Expect(ExpectExists(set)).To(haveReplicas(1, 0))
		})

		It("are deleted even if no replacement can be created: they may use up the quota", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(1))
			SetVMIStatus(&vmis[0], v1.Failed)
			r.Writes.Fail = func(request string) error {
				if request == createVMI {
					return ErrInjected
				}
				return nil
			}
			_, err := r.Try(set)
			Expect(err).To(MatchError(ErrInjected))
			ExpectGone(&vmis[0])
			Expect(ExpectExists(set)).To(haveSetCondition(replicaFailure, "FailedCreate", ErrInjected.Error()))
		})
	})

	Describe("owner references", func() {
		It("adopts VMIs that match its selector and have no owner, and creates only the rest", func() {
			orphan := builder.MakeVMI("orphan").Namespace(r.ns).Label(builder.SetLabel, "web").Obj()
			stranger := builder.MakeVMI("stranger").Namespace(r.ns).Label(builder.SetLabel, "other").Obj()
			vm := builder.MakeVM("owned").UID("1").Obj()
			owned := builder.MakeVMI("owned").Namespace(r.ns).Label(builder.SetLabel, "web").OwnedBy(vm).Obj()
			ExpectCreated(orphan, stranger, owned)
			set := r.create(builder.MakeReplicaSet("web").Replicas(2))
			r.Step(set)
			Expect(metav1.IsControlledBy(ExpectExists(orphan), set)).To(BeTrue())
			Expect(ExpectExists(stranger).OwnerReferences).To(BeEmpty())
			Expect(r.list()).To(HaveLen(4), "one was created")
			Expect(metav1.IsControlledBy(ExpectExists(owned), vm)).To(BeTrue())
			Expect(ExpectExists(set)).To(haveReplicas(2, 0))
			r.ExpectSteady(set)
		})

		It("deletes surplus VMIs after adopting", func() {
			set, _ := r.running(builder.MakeReplicaSet("web").Replicas(1))
			ExpectCreated(builder.MakeVMI("orphan").Namespace(r.ns).Label(builder.SetLabel, "web").Obj())
			r.Step(set)
			Expect(r.list()).To(HaveLen(1))
			Expect(r.list()[0].Name).NotTo(Equal("orphan"), "the one that is not ready is deleted")
		})

		It("releases and replaces a VMI that lost its label, and adopts it again", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(1))
			label(&vmis[0], "debug")
			r.Step(set)
			Expect(ExpectExists(&vmis[0]).OwnerReferences).To(BeEmpty())
			Expect(vmis[0].DeletionTimestamp).To(BeNil())
			Expect(r.list()).To(HaveLen(2))
			r.ExpectSteady(set)

			label(&vmis[0], "web")
			r.Step(set)
			Expect(ExpectExists(&vmis[0]).DeletionTimestamp).To(BeNil(), "the one that is ready is kept")
			Expect(r.list()).To(HaveLen(1))
		})

		It("adopts nothing while it is being deleted, also with a stale cache", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(1))
			r.Writes.Stale = ExpectExists(set).DeepCopy()
			Expect(K8sClient.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
			ExpectExists(&vmis[0]).OwnerReferences = nil // in place of the garbage collector, which envtest lacks
			Expect(K8sClient.Update(ctx, &vmis[0])).To(Succeed())
			_, err := r.Try(set)
			Expect(err).NotTo(HaveOccurred())
			Expect(r.Writes.Take()).NotTo(ContainElement(patchVMI))
			Expect(ExpectExists(&vmis[0]).OwnerReferences).To(BeEmpty())
		})

		It("adopts nothing for an earlier set of its name", func() {
			set := r.create(builder.MakeReplicaSet("web").Replicas(0))
			r.Writes.Stale = ExpectExists(set).DeepCopy()
			Expect(K8sClient.Delete(ctx, set)).To(Succeed())
			r.create(builder.MakeReplicaSet("web").Replicas(1).Paused())
			orphan := builder.MakeVMI("orphan").Namespace(r.ns).Label(builder.SetLabel, "web").Obj()
			ExpectCreated(orphan)
			_, err := r.Try(set)
			Expect(err).NotTo(HaveOccurred())
			Expect(ExpectExists(orphan).OwnerReferences).To(BeEmpty())
		})

		It("neither creates nor deletes VMIs while it is being deleted", func() {
			set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(2))
			r.change(set, func(set *v1.VirtualMachineInstanceReplicaSet) { set.Finalizers = []string{"test/finalizer"} })
			Expect(K8sClient.Delete(ctx, set)).To(Succeed())
			Expect(K8sClient.Delete(ctx, &vmis[0])).To(Succeed())
			SetVMIStatus(&vmis[1], v1.Failed)
			r.Step(set)
			r.expectQuiet(set)
			Expect(namesOf(r.list())).To(Equal([]string{vmis[1].Name}))
			r.change(set, func(set *v1.VirtualMachineInstanceReplicaSet) { set.Finalizers = nil })
			r.expectQuiet(set)
		})
	})

	It("creates and deletes nothing while it is paused, reports it, and resumes", func() {
		set, vmis := r.running(builder.MakeReplicaSet("web").Replicas(2))
		r.change(set, func(set *v1.VirtualMachineInstanceReplicaSet) { set.Spec.Paused = true })
		r.Step(set)
		Expect(r.events.Take()).To(ConsistOf("Normal SuccessfulPaused: Paused"))
		Expect(ExpectExists(set)).To(haveSetCondition(replicaPaused, "Paused", "Controller got paused"))

		r.scale(set, 3)
		SetVMIStatus(&vmis[0], v1.Failed)
		r.Step(set)
		Expect(ExpectExists(set)).To(haveReplicas(1, 1), "the status is updated all the same")
		Expect(namesOf(r.list())).To(Equal(namesOf(vmis)))
		r.expectQuiet(set)

		r.change(set, func(set *v1.VirtualMachineInstanceReplicaSet) { set.Spec.Paused = false })
		r.Step(set)
		Expect(r.events.Take()).To(ContainElement("Normal SuccessfulResumed: Resumed"))
		Expect(ExpectExists(set)).To(And(haveReplicas(3, 1), haveNoSetConditions()))
	})

	Describe("failures", func() {
		It("reports an exceeded quota, tries one creation each time, and continues when there is room", func() {
			const counted = "count/virtualmachineinstances.kubevirt.io"
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "vmis"}}
			quota.Spec.Hard = corev1.ResourceList{counted: resource.MustParse("2")}
			ExpectCreated(quota)
			// In place of the quota controller, which envtest lacks.
			quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{counted: resource.MustParse("0")}
			Expect(K8sClient.Status().Update(ctx, quota)).To(Succeed())

			set := r.create(builder.MakeReplicaSet("web").Replicas(9))
			_, err := r.Try(set)
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
			r.Writes.Take()
			Expect(r.list()).To(HaveLen(2))
			Expect(ExpectExists(set)).To(
				And(haveReplicas(2, 0), haveSetCondition(replicaFailure, "FailedCreate", "exceeded quota: vmis")))
			Expect(r.events.Take()).To(
				ContainElement(HavePrefix("Warning FailedCreate: Error creating virtual machine instance: ")))

			_, err = r.Try(set)
			Expect(err).To(HaveOccurred())
			Expect(r.Writes.Take()).To(ConsistOf(createVMI), "the same failure is written once")
			Expect(r.events.Take()).To(BeEmpty())

			Expect(K8sClient.Delete(ctx, quota)).To(Succeed())
			Eventually(func() error { _, err := r.Try(set); return err }, "20s").Should(Succeed())
			Expect(ExpectExists(set)).To(And(haveReplicas(9, 0), haveNoSetConditions()))
		})

		It("reports a VMI that cannot be deleted", func() {
			set, _ := r.running(builder.MakeReplicaSet("web").Replicas(2))
			r.Writes.Fail = func(request string) error {
				if request == deleteVMI {
					return ErrInjected
				}
				return nil
			}
			r.scale(set, 0)
			_, err := r.Try(set)
			Expect(err).To(MatchError(ErrInjected))
			Expect(r.Writes.TakeOnly(deleteVMI)).To(HaveLen(1), "one deletion is tried until one succeeds")
			Expect(r.notDeleted()).To(HaveLen(2))
			Expect(ExpectExists(set)).To(haveSetCondition(replicaFailure, "FailedDelete", ErrInjected.Error()))
			Expect(r.events.Take()).To(ConsistOf(HavePrefix("Warning FailedDelete: Error deleting virtual machine instance: ")))
		})

		It("does not retry creations in a namespace that is being deleted", func() {
			set := r.create(builder.MakeReplicaSet("web").Replicas(2))
			Expect(K8sClient.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.ns}})).To(Succeed())
			Eventually(func() bool {
				_, err := r.Try(set)
				return err == nil && slices.Equal(r.Writes.Take(), []string{createVMI})
			}, "20s").Should(BeTrue())
			Expect(r.list()).To(BeEmpty())
		})

		DescribeTable("reports an invalid spec that admission would have denied",
			func(change func(*v1.VirtualMachineInstanceReplicaSetSpec), message string) {
				set := r.create(builder.MakeReplicaSet("web").With(
					func(set *v1.VirtualMachineInstanceReplicaSet) { change(&set.Spec) }))
				r.Step(set)
				Expect(ExpectExists(set)).To(haveSetCondition(replicaFailure, "FailedCreate", message))
				r.expectQuiet(set)
			},
			Entry("selector that does not match the template", func(s *v1.VirtualMachineInstanceReplicaSetSpec) {
				s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
			}, "spec.selector does not match"),
			Entry("no labels", func(s *v1.VirtualMachineInstanceReplicaSetSpec) {
				s.Selector, s.Template.ObjectMeta.Labels = &metav1.LabelSelector{}, nil
			}, "spec.template.metadata.labels is empty"),
			Entry("invalid selector", func(s *v1.VirtualMachineInstanceReplicaSetSpec) {
				s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a",
					Operator: "Near"}}}
			}, "spec.selector: "),
		)
	})
})
