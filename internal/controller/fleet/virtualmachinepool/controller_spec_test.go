// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool_test

import (
	"context"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/api/cdi"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const (
	poolFailure = poolv1.VirtualMachinePoolReplicaFailure
	poolPaused  = poolv1.VirtualMachinePoolReplicaPaused
)

var _ = Describe("VirtualMachinePool", func() {
	var r *pools

	BeforeEach(func() { r = newPools() })

	Describe("making VMs", func() {
		It("makes them of its template, with one write each, one for the revision and one for the status", func() {
			pool := r.create(builder.MakePool("web").Replicas(3))
			// The revision first: the VMs name it.
			r.ExpectOrder(pool, createRevision, createVM, createVM, createVM, patchPoolStatus)
			Expect(r.events.Take()).To(ConsistOf("Normal SuccessfulCreate: Created VM "+r.ns+"/web-0",
				"Normal SuccessfulCreate: Created VM "+r.ns+"/web-1", "Normal SuccessfulCreate: Created VM "+r.ns+"/web-2"))
			r.ExpectSteady(pool)
			Expect(r.names()).To(Equal([]string{"web-0", "web-1", "web-2"}))
			vm := r.vm("web-0")
			Expect(metav1.IsControlledBy(vm, pool)).To(BeTrue())
			Expect(vm.Finalizers).To(Equal([]string{poolFinalizer}))
			Expect(vm.Labels).To(HaveKeyWithValue(v1.VirtualMachinePoolRevisionName, "web-1"))
			Expect(vm.Spec.Template.ObjectMeta.Labels).To(HaveKeyWithValue(v1.VirtualMachinePoolRevisionName, "web-1"))
			Expect(ExpectExists(pool)).To(And(havePoolReplicas(3, 0), haveNoPoolConditions()))
			Expect(pool.Status.LabelSelector).To(Equal("pool=web"))
			r.start()
			r.Step(pool)
			Expect(ExpectExists(pool)).To(havePoolReplicas(3, 3))
		})

		It("skips numbers whose name another VM has, and fills gaps", func() {
			foreign := builder.MakeVM("web-1").Namespace(r.ns).Label(builder.PoolLabel, "web").Obj()
			ExpectCreated(foreign)
			pool := r.create(builder.MakePool("web").Replicas(3))
			r.Settle(pool)
			Expect(r.names()).To(Equal([]string{"web-0", "web-1", "web-2", "web-3"}))
			Expect(ExpectExists(foreign).OwnerReferences).To(BeEmpty(), "no VM is adopted")
			Expect(K8sClient.Delete(ctx, r.vm("web-0"))).To(Succeed())
			r.Settle(pool)
			Expect(r.names()).To(ContainElement("web-0"), "a deleted VM returns under its name")
		})

		It("makes no surplus from a stale cache, nor when several reconcile at the same time", func() {
			pool := r.create(builder.MakePool("web").Replicas(5))
			r.Writes.StaleList = &v1.VirtualMachineList{}
			for range 3 {
				r.Step(pool)
			}
			r.Writes.StaleList = nil
			Expect(r.names()).To(HaveLen(5))
			r.scale(pool, 15)
			var group sync.WaitGroup
			errs := make([]error, 4)
			for i := range errs {
				other := newPools()
				other.ns = r.ns
				group.Go(func() { _, errs[i] = other.Try(pool) })
			}
			group.Wait()
			Expect(errs).To(HaveEach(BeNil()))
			Expect(r.names()).To(HaveLen(15))
		})

		It("serves v1alpha1 with the same fields", func() {
			pool := r.create(builder.MakePool("web").With(oneByOne))
			old := &unstructured.Unstructured{}
			old.SetAPIVersion("pool.kubevirt.io/v1alpha1")
			old.SetKind("VirtualMachinePool")
			Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(pool), old)).To(Succeed())
			policy, _, _ := unstructured.NestedString(old.Object, "spec", "updateStrategy", "proactive", "selectionPolicy",
				"sortPolicy")
			Expect(policy).To(Equal("AscendingOrder"))
		})
	})

	Describe("scaling", func() {
		It("works by the scale subresource, without another revision", func() {
			pool := r.running(builder.MakePool("web").Replicas(2))
			scale := &autoscalingv1.Scale{}
			Expect(K8sClient.SubResource("scale").Get(ctx, pool, scale)).To(Succeed())
			Expect(scale.Status.Replicas).To(BeEquivalentTo(2))
			Expect(scale.Status.Selector).To(Equal("pool=web"))
			r.scale(pool, 4)
			r.Step(pool)
			Expect(r.names()).To(HaveLen(4))
			Expect(r.revisions()).To(Equal([]string{"web-1"}))
			Expect(r.vm("web-3").Labels).To(HaveKeyWithValue(v1.VirtualMachinePoolRevisionName, "web-1"))
		})

		It("deletes by the policy, and counts VMs until they are gone", func() {
			pool := r.running(builder.MakePool("web").Replicas(4).With(descending))
			uid := string(r.vm("web-3").UID)
			r.scale(pool, 2)
			r.Step(pool)
			Expect(r.events.Take()).To(
				ContainElement("Normal SuccessfulDelete: Deleted VM " + r.ns + "/web-3 with uid " + uid + " from pool"))
			Expect(ExpectExists(pool)).To(havePoolReplicas(4, 4))
			r.Step(pool)
			r.Step(pool)
			Expect(ExpectExists(pool)).To(havePoolReplicas(2, 2))
			Expect(r.names()).To(Equal([]string{"web-0", "web-1"}))
		})

		It("deletes what the selectors match, and reports the rest", func() {
			pool := r.running(builder.MakePool("web").Replicas(3).With(func(s *poolSpec) {
				s.ScaleInStrategy = &poolv1.VirtualMachinePoolScaleInStrategy{
					Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{
						SelectionPolicy: &poolv1.VirtualMachinePoolSelectionPolicy{Selectors: &poolv1.VirtualMachinePoolSelectors{
							LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"old": "yes"}},
						}},
					}}
			}))
			EditVM(r.vm("web-1"), func(vm *v1.VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels["old"] = "yes" })
			r.scale(pool, 0)
			r.Settle(pool)
			Expect(r.names()).To(Equal([]string{"web-0", "web-2"}))
			Expect(ExpectExists(pool)).To(havePoolCondition(poolFailure, "FailedScaleIn", "2 of the VMs to delete do not match"))
			r.scale(pool, 2)
			r.Settle(pool)
			Expect(ExpectExists(pool)).To(haveNoPoolConditions())
		})

		It("leaves it to others if it is unmanaged or opportunistic, and replaces none", func() {
			for name, strategy := range map[string]*poolv1.VirtualMachinePoolScaleInStrategy{
				"hands": {Unmanaged: &poolv1.VirtualMachinePoolUnmanagedStrategy{}},
				"waits": {Opportunistic: &poolv1.VirtualMachinePoolOpportunisticScaleInStrategy{}},
			} {
				pool := r.running(builder.MakePool(name).Replicas(2).With(func(s *poolSpec) { s.ScaleInStrategy = strategy }))
				r.scale(pool, 1)
				r.ExpectSteady(pool)
				Expect(K8sClient.Delete(ctx, r.vm(name+"-0"))).To(Succeed())
				r.Step(pool)
				r.Step(pool)
				Expect(r.names()).To(And(ContainElement(name+"-1"), Not(ContainElement(name+"-0"))))
			}
		})
	})

	Describe("the state of a VM that is deleted", func() {
		withDisk := func(state poolv1.StatePreservation) func(*poolSpec) {
			return func(s *poolSpec) {
				descending(s)
				s.ScaleInStrategy.Proactive.StatePreservation = &state
				s.VirtualMachineTemplate.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{
					{ObjectMeta: metav1.ObjectMeta{Name: "root"}}}
				s.VirtualMachineTemplate.Spec.Template.Spec.Volumes = []v1.Volume{
					{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}},
				}
			}
		}
		disk := func(vm *v1.VirtualMachine) (*cdi.DataVolume, *corev1.PersistentVolumeClaim) {
			GinkgoHelper()
			owners := []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
			Expect(vm.Spec.DataVolumeTemplates[0].Name).To(Equal("root-0"))
			dv := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "root-0", OwnerReferences: owners}}
			claim := builder.MakePVC("root-0").Namespace(r.ns).Obj()
			claim.OwnerReferences = owners
			ExpectCreated(dv, claim)
			return dv, claim
		}

		It("stays if the policy is Offline, or Online", func() {
			for _, state := range []poolv1.StatePreservation{poolv1.StatePreservationOffline, poolv1.StatePreservationOnline} {
				r = newPools()
				pool := r.running(builder.MakePool("web").With(withDisk(state)))
				dv, claim := disk(r.vm("web-0"))
				r.scale(pool, 0)
				r.Step(pool)
				// The VM last: without its finalizer, it takes along what it still owns.
				r.ExpectOrder(pool, "patch DataVolume", "patch PersistentVolumeClaim", patchVM)
				Expect(hasOwner(ExpectExists(dv)) || hasOwner(ExpectExists(claim))).To(BeFalse())
				Expect(r.names()).To(BeEmpty())
			}
		})

		It("costs no list of a whole namespace, however many VMs are deleted", func() {
			pool := r.running(builder.MakePool("web").Replicas(20).With(withDisk(poolv1.StatePreservationOffline)))
			dv, _ := disk(r.vm("web-0"))
			lists := 0
			r.APIReader = interceptor.NewClient(AsController, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					lists++
					_, metadata := list.(*metav1.PartialObjectMetadataList)
					Expect(metadata).To(BeTrue(), "%T has whole objects", list)
					Expect((&client.ListOptions{}).ApplyOptions(opts).Limit).NotTo(BeZero())
					return c.List(ctx, list, opts...)
				},
			})
			r.scale(pool, 0)
			r.Step(pool)
			Expect(lists).To(Equal(2), "VMs and VMIs")
			_, err := r.Try(pool)
			Expect(err).NotTo(HaveOccurred())
			Expect(lists).To(Equal(2))
			Expect(hasOwner(ExpectExists(dv))).To(BeFalse())
			Expect(r.names()).To(BeEmpty())
		})

		It("goes with the VM by default, and if the VM was deleted in the foreground", func() {
			pool := r.running(builder.MakePool("web").With(withDisk(poolv1.StatePreservationDisabled)))
			dv, claim := disk(r.vm("web-0"))
			r.scale(pool, 0)
			r.Settle(pool)
			Expect(hasOwner(ExpectExists(dv)) && hasOwner(ExpectExists(claim))).To(BeTrue())

			r = newPools()
			pool = r.running(builder.MakePool("web").With(withDisk(poolv1.StatePreservationOffline)))
			dv, _ = disk(r.vm("web-0"))
			Expect(K8sClient.Delete(ctx, r.vm("web-0"), client.PropagationPolicy(metav1.DeletePropagationForeground))).
				To(Succeed())
			r.Step(pool)
			Expect(hasOwner(ExpectExists(dv))).To(BeTrue())
		})

		It("is released before the VM, and the VM waits for it", func() {
			pool := r.running(builder.MakePool("web").With(withDisk(poolv1.StatePreservationOffline)))
			dv, _ := disk(r.vm("web-0"))
			r.scale(pool, 0)
			r.Step(pool)
			r.Writes.Fail = func(request string) error {
				if request == "patch DataVolume" {
					return ErrInjected
				}
				return nil
			}
			_, err := r.Try(pool)
			Expect(err).To(MatchError(ErrInjected))
			Expect(r.vm("web-0").Finalizers).To(ContainElement(poolFinalizer))
			Expect(ExpectExists(pool)).To(havePoolCondition(poolFailure, "FailedDelete", ErrInjected.Error()))
			r.Writes.Fail = nil
			r.Writes.Take()
			r.Settle(pool)
			Expect(r.names()).To(BeEmpty())
			Expect(hasOwner(ExpectExists(dv))).To(BeFalse())
		})
	})

	Describe("VMs that are not the pool's", func() {
		It("are never healed nor deleted", func() {
			stranger := builder.MakeVM("stranger").Namespace(r.ns).Label(builder.PoolLabel, "web").Obj()
			ExpectCreated(stranger)
			other := r.running(builder.MakePool("other").With(func(s *poolSpec) {
				s.VirtualMachineTemplate.ObjectMeta.Labels[builder.PoolLabel] = "web"
				s.Selector.MatchLabels[builder.PoolLabel] = "web"
			}))
			r.fails("stranger", v1.VirtualMachineStatusCrashLoopBackOff, time.Hour)
			r.fails("other-0", v1.VirtualMachineStatusErrImagePull, time.Hour)
			Expect(K8sClient.Delete(ctx, r.vmi("other-0"))).To(Succeed())
			pool := r.running(builder.MakePool("web").Replicas(0).With(healing))
			r.ExpectSteady(pool)
			Expect(K8sClient.Delete(ctx, pool)).To(Succeed())
			r.ExpectSteady(pool)
			Expect(r.vm("stranger").DeletionTimestamp).To(BeNil())
			Expect(r.vm("other-0").DeletionTimestamp).To(BeNil())
			Expect(r.vm("other-0").Finalizers).To(ContainElement(poolFinalizer))
			Expect(metav1.IsControlledBy(r.vm("other-0"), other)).To(BeTrue())
		})

		It("are those that were detached by a label, without owner and finalizer, and replaced", func() {
			pool := r.running(builder.MakePool("web").Replicas(2))
			EditVM(r.vm("web-0"), func(vm *v1.VirtualMachine) {
				delete(vm.Labels, builder.PoolLabel)
				vm.Finalizers = append(vm.Finalizers, "user/finalizer")
			})
			r.change(pool, func(s *poolSpec) { s.Paused = true })
			r.Step(pool)
			Expect(r.vm("web-0").OwnerReferences).To(BeEmpty())
			Expect(r.vm("web-0").Finalizers).To(Equal([]string{"user/finalizer"}), "also while the pool is paused")
			r.change(pool, func(s *poolSpec) { s.Paused = false })
			r.Step(pool)
			Expect(r.names()).To(Equal([]string{"web-0", "web-1", "web-2"}))
		})

		It("are those without the owner reference: the finalizer goes, others stay", func() {
			pool := r.running(builder.MakePool("web").Replicas(1))
			EditVM(r.vm("web-0"), func(vm *v1.VirtualMachine) {
				vm.OwnerReferences, vm.Finalizers = nil, append(vm.Finalizers, "user/finalizer")
			})
			r.Step(pool)
			Expect(r.vm("web-0").Finalizers).To(Equal([]string{"user/finalizer"}))
			Expect(r.names()).To(Equal([]string{"web-0", "web-1"}))
		})
	})

	Describe("deletion of the pool", func() {
		It("releases its VMs as the garbage collector deletes them", func() {
			pool := r.running(builder.MakePool("web").Replicas(2))
			Expect(K8sClient.Delete(ctx, pool)).To(Succeed())
			ExpectGone(pool)
			Expect(K8sClient.Delete(ctx, r.vm("web-0"))).To(Succeed())
			r.Step(pool)
			Expect(r.names()).To(Equal([]string{"web-1"}))
			Expect(r.vm("web-1").Finalizers).To(BeEmpty())
		})

		It("releases a VM that was detached just before", func() {
			pool := r.running(builder.MakePool("web").Replicas(1))
			EditVM(r.vm("web-0"), func(vm *v1.VirtualMachine) { vm.OwnerReferences, vm.Labels = nil, nil })
			Expect(K8sClient.Delete(ctx, pool)).To(Succeed())
			ExpectGone(pool)
			r.Step(pool)
			Expect(r.vm("web-0").Finalizers).To(BeEmpty())
		})

		It("removes the finalizer that KubeVirt set, and no other", func() {
			b := builder.MakePool("web").Namespace(r.ns).Obj()
			b.Finalizers = []string{"user/finalizer", poolFinalizer}
			ExpectCreated(b)
			r.Settle(b)
			Expect(K8sClient.Delete(ctx, b)).To(Succeed())
			Expect(K8sClient.Delete(ctx, r.vm("web-0"))).To(Succeed())
			// The pool last: without it, nothing removes the VM's finalizer.
			r.ExpectOrder(b, patchVM, "patch VirtualMachinePool")
			Expect(ExpectExists(b).Finalizers).To(Equal([]string{"user/finalizer"}))
			r.Step(b)
			Expect(r.names()).To(BeEmpty(), "a pool that is being deleted makes no VMs")
		})

		It("does nothing that is written to its spec once it is being deleted, which no webhook validates", func() {
			b := builder.MakePool("web").Namespace(r.ns).Obj()
			b.Finalizers = []string{"user/finalizer"}
			ExpectCreated(b)
			r.Settle(b)
			Expect(K8sClient.Delete(ctx, b)).To(Succeed())
			r.change(b, func(s *poolSpec) {
				s.Replicas = ptr.To[int32](5)
				s.VirtualMachineTemplate.Spec.Template.Spec.Hostname = "changed"
			})
			for range 3 {
				_, err := r.Try(b)
				Expect(err).NotTo(HaveOccurred())
			}
			Expect(r.Writes.Take()).NotTo(ContainElement(Or(HavePrefix("create "), HavePrefix("delete "))))
			Expect(r.names()).To(Equal([]string{"web-0"}))
			Expect(r.vm("web-0").Spec.Template.Spec.Hostname).NotTo(Equal("changed"))
		})

		It("leaves the VMs of a new pool of its name, which the cache does not show yet", func() {
			pool := r.create(builder.MakePool("web"))
			r.Settle(pool)
			r.Writes.Blind = func(_ client.ObjectKey, o client.Object) bool {
				_,
					is := o.(*poolv1.VirtualMachinePool)
				return is
			}
			r.ExpectSteady(pool)
			Expect(r.vm("web-0").Finalizers).To(ContainElement(poolFinalizer))
		})
	})

	It("does nothing while it is paused, but reports", func() {
		pool := r.running(builder.MakePool("web").Replicas(2))
		r.change(pool, func(s *poolSpec) { s.Paused = true })
		r.Step(pool)
		Expect(r.events.Take()).To(ConsistOf("Normal SuccessfulPaused: Pool is paused"))
		Expect(ExpectExists(pool)).To(havePoolCondition(poolPaused, "SuccessfulPaused", "Pool controller is paused"))
		r.scale(pool, 3)
		r.change(pool, hostname("b"))
		r.ExpectSteady(pool)
		Expect(K8sClient.Delete(ctx, r.vm("web-0"))).To(Succeed())
		r.Step(pool)
		r.Step(pool)
		Expect(ExpectExists(pool)).To(havePoolReplicas(1, 1))
		Expect(r.names()).To(Equal([]string{"web-1"}))
		r.change(pool, func(s *poolSpec) { s.Paused = false })
		r.Settle(pool)
		Expect(r.events.Take()).To(ContainElement("Normal SuccessfulResume: Pool is unpaused"))
		Expect(ExpectExists(pool)).To(And(havePoolReplicas(3, 1), haveNoPoolConditions()))
	})

	It("reports a VM that cannot be created, with the text of the last error", func() {
		pool := r.create(builder.MakePool("web").Replicas(9))
		text := "first"
		r.Writes.Fail = func(request string) error {
			if request == createVM {
				return apierrors.NewBadRequest(text)
			}
			return nil
		}
		for _, text = range []string{"first", "first", "second"} {
			_, err := r.Try(pool)
			Expect(err).To(HaveOccurred())
			Expect(r.Writes.TakeOnly(createVM)).To(HaveLen(1))
			Expect(ExpectExists(pool)).To(havePoolCondition(poolFailure, "FailedScaleOut", text))
		}
		Expect(r.events.Take()).To(HaveExactElements(
			ContainSubstring("Warning FailedCreate: Error creating VM: "), ContainSubstring("Warning FailedScaleOut: "),
			ContainSubstring("second"), ContainSubstring("second")), "a failure is recorded when it is new")
		r.Writes.Fail = nil
		r.Settle(pool)
		Expect(ExpectExists(pool)).To(And(havePoolReplicas(9, 0), haveNoPoolConditions()))
	})

	It("reports a spec that admission would reject, and releases VMs all the same", func() {
		pool := r.running(builder.MakePool("web"))
		r.change(pool, func(s *poolSpec) { s.Selector.MatchLabels[builder.PoolLabel] = "other" })
		Expect(K8sClient.Delete(ctx, r.vm("web-0"))).To(Succeed())
		r.Step(pool)
		Expect(ExpectExists(pool)).To(havePoolCondition(poolFailure, "FailedScaleOut", "spec.selector does not match"))
		Expect(r.names()).To(BeEmpty())
	})
})
