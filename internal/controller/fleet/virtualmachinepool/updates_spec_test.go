// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool_test

import (
	"encoding/json"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachinePool that changes its VMs", func() {
	var r *pools

	BeforeEach(func() { r = newPools() })

	Describe("updates", func() {
		It("change the VMs and restart the guests as maxUnavailable allows", func() {
			pool := r.running(builder.MakePool("web").Replicas(3).With(oneByOne))
			r.change(pool, hostname("b"))
			// The VM before its guest, which would otherwise start again as it was.
			r.ExpectOrder(pool, createRevision, patchVM, patchVM, patchVM, deleteVMI, patchPoolStatus)
			Expect(r.events.Take()).To(ContainElements("Normal SuccessfulUpdate: Updated VM "+r.ns+"/web-0",
				"Normal SuccessfulDelete: Successfully updated resource "+r.ns+"/web-0"))
			Expect(r.vm("web-2").Spec.Template.Spec.Hostname).To(Equal("b"))
			Expect(r.vm("web-2").Labels).To(HaveKeyWithValue(v1.VirtualMachinePoolRevisionName, "web-2"))
			ExpectGone(builder.MakeVMI("web-0").Namespace(r.ns).Obj())
			r.ExpectSteady(pool)
			Expect(r.vmi("web-1").DeletionTimestamp).To(BeNil(), "one at a time")
			r.start()
			r.Step(pool)
			ExpectGone(builder.MakeVMI("web-1").Namespace(r.ns).Obj())
			r.start()
			r.Step(pool)
			ExpectGone(builder.MakeVMI("web-2").Namespace(r.ns).Obj())
			Expect(r.revisions()).To(Equal([]string{"web-1", "web-2"}))
			r.start()
			r.Step(pool)
			Expect(r.revisions()).To(Equal([]string{"web-2"}))
			r.ExpectSteady(pool)
		})

		It("keep what users changed", func() {
			pool := r.running(builder.MakePool("web"))
			hotplugged := v1.Volume{Name: "more",
				VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "more"}}}
			EditVM(r.vm("web-0"), func(vm *v1.VirtualMachine) {
				vm.Labels["mine"] = "yes"
				vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
				vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, hotplugged)
				vm.Spec.Template.Spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223"}
			})
			Expect(K8sClient.Delete(ctx, r.vmi("web-0"))).To(Succeed())
			r.change(pool, hostname("b"))
			r.Step(pool)
			vm := r.vm("web-0")
			Expect(vm.Spec.Template.Spec.Hostname).To(Equal("b"))
			Expect(vm.Labels).To(HaveKeyWithValue("mine", "yes"))
			Expect(*vm.Spec.RunStrategy).To(Equal(v1.RunStrategyHalted))
			Expect(vm.Spec.Template.Spec.Volumes).To(ContainElement(hotplugged))
			Expect(vm.Spec.Template.Spec.Domain.Firmware.UUID).To(BeEquivalentTo("5d307ca9-b3ef-428c-8861-06e72d69f223"))
		})

		It("label VMs and VMIs whose revision makes the same ones", func() {
			pool := r.running(builder.MakePool("web"))
			r.change(pool, func(s *poolSpec) {
				s.NameGeneration = &poolv1.VirtualMachinePoolNameGeneration{AppendIndexToSecretRefs: ptr.To(true)}
			})
			r.Step(pool)
			Expect(r.events.Take()).To(BeEmpty())
			Expect(r.vm("web-0").Labels).To(HaveKeyWithValue(v1.VirtualMachinePoolRevisionName, "web-2"))
			Expect(r.vmi("web-0").Labels).To(HaveKeyWithValue(v1.VirtualMachinePoolRevisionName, "web-2"))
			r.Step(pool)
			Expect(r.revisions()).To(Equal([]string{"web-2"}))
			r.ExpectSteady(pool)
		})

		It("replace VMs if the template has other disks", func() {
			pool := r.running(builder.MakePool("web").With(oneByOne))
			r.change(pool, func(s *poolSpec) {
				s.VirtualMachineTemplate.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{
					{ObjectMeta: metav1.ObjectMeta{Name: "root"}}}
			})
			r.Step(pool)
			Expect(r.vm("web-0").Finalizers).To(ContainElement(metav1.FinalizerDeleteDependents))
		})

		It("request the restart of a VM that does not start by itself", func() {
			pool := r.running(builder.MakePool("web").With(func(s *poolSpec) {
				s.VirtualMachineTemplate.Spec.RunStrategy = ptr.To(v1.RunStrategyManual)
			}))
			r.change(pool, hostname("b"))
			r.Step(pool)
			uid := r.vmi("web-0").UID
			Expect(r.vm("web-0").Status.StateChangeRequests).To(Equal([]v1.VirtualMachineStateChangeRequest{
				{Action: v1.StopRequest, UID: &uid, Data: map[string]string{"runStrategy": "Manual"}},
				{Action: v1.StartRequest, Data: map[string]string{"runStrategy": "Manual"}},
			}))
			r.ExpectSteady(pool)
		})

		It("leave guests alone if they are opportunistic, and VMs if they are unmanaged", func() {
			pool := r.running(builder.MakePool("web").With(func(s *poolSpec) {
				s.UpdateStrategy = &poolv1.VirtualMachinePoolUpdateStrategy{
					Opportunistic: &poolv1.VirtualMachineOpportunisticUpdateStrategy{}}
			}))
			r.change(pool, hostname("b"))
			r.Step(pool)
			r.Step(pool)
			Expect(r.revisions()).To(HaveLen(2), "the VMI names the old one")
			Expect(r.vmi("web-0").DeletionTimestamp).To(BeNil())
			r.change(pool, func(s *poolSpec) {
				s.UpdateStrategy = &poolv1.VirtualMachinePoolUpdateStrategy{
					Unmanaged: &poolv1.VirtualMachinePoolUnmanagedStrategy{}}
				hostname("c")(s)
			})
			r.Step(pool)
			Expect(r.vm("web-0").Spec.Template.Spec.Hostname).To(Equal("b"))
		})

		It("stop at the first VMI that cannot be deleted", func() {
			pool := r.running(builder.MakePool("web").Replicas(3))
			r.change(pool, hostname("b"))
			r.Writes.Fail = func(request string) error {
				if request == deleteVMI {
					return ErrInjected
				}
				return nil
			}
			_, err := r.Try(pool)
			Expect(err).To(MatchError(ErrInjected))
			Expect(r.Writes.TakeOnly(deleteVMI)).To(HaveLen(1))
			Expect(ExpectExists(pool)).To(havePoolCondition(poolFailure, "FailedUpdate", ErrInjected.Error()))
			Expect(r.events.Take()).To(ContainElement(ContainSubstring("Warning FailedUpdate: ")))
		})
	})

	Describe("revisions", func() {
		It("are found by their owner: another one of the name is not used", func() {
			foreign := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "web-1"}}
			foreign.Data.Raw = []byte(`{}`)
			ExpectCreated(foreign)
			pool := r.create(builder.MakePool("web"))
			r.Step(pool)
			Expect(r.vm("web-0").Labels[v1.VirtualMachinePoolRevisionName]).To(MatchRegexp(`^web-1-.{5}$`))
			r.ExpectSteady(pool)
			ExpectExists(foreign)
		})

		It("that KubeVirt made are used and found again", func() {
			pool := r.create(builder.MakePool("web"))
			r.Settle(pool)
			revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "web-1"}}
			ExpectExists(revision).Labels = nil
			Expect(K8sClient.Update(ctx, revision)).To(Succeed())
			r.Step(pool)
			Expect(ExpectExists(revision).Labels).To(HaveKeyWithValue(v1.CreatedByLabel, string(pool.UID)))
			r.ExpectSteady(pool)
		})

		// unsort replaces a revision by one whose keys have the order of the fields of Go's struct, as KubeVirt and earlier
		// versions wrote it.
		unsort := func(pool *poolv1.VirtualMachinePool, labels map[string]string) *appsv1.ControllerRevision {
			GinkgoHelper()
			sorted := ExpectExists(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "web-1"}})
			raw, err := json.Marshal(pool.Spec)
			Expect(err).NotTo(HaveOccurred())
			old := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: raw}, Revision: 1}
			old.Namespace, old.Name, old.Labels, old.OwnerReferences = r.ns, "web-1", labels, sorted.OwnerReferences
			Expect(K8sClient.Delete(ctx, sorted)).To(Succeed())
			ExpectCreated(old)
			Expect(RemoveOwner(old, pool)).To(MatchError(ContainSubstring("field is immutable")))
			return old
		}
		expectOrphaned := func(pool *poolv1.VirtualMachinePool, data []byte) {
			GinkgoHelper()
			revision := ExpectExists(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "web-1"}})
			if data != nil {
				Expect(revision.Data.Raw).To(MatchJSON(data))
			}
			Expect(RemoveOwner(revision, pool)).To(Succeed())
			Expect(r.revisions()).To(Equal([]string{"web-1"}))
		}
		ours := func(pool *poolv1.VirtualMachinePool) map[string]string {
			return map[string]string{v1.CreatedByLabel: string(pool.UID)}
		}

		It("can be orphaned by the garbage collector", func() {
			pool := r.create(builder.MakePool("web"))
			r.Settle(pool)
			expectOrphaned(pool, nil)
		})

		It("are replaced by ones of the same name and content if their keys are not sorted, also of a paused pool", func() {
			pool := r.create(builder.MakePool("web"))
			r.Settle(pool)
			old := unsort(pool, ours(pool))
			r.change(pool, func(s *poolSpec) { s.Paused = true })
			r.Settle(pool)
			expectOrphaned(pool, old.Data.Raw)
		})

		DescribeTable("are sorted while the pool is being orphaned",
			func(labels func(*poolv1.VirtualMachinePool) map[string]string) {
				pool := r.create(builder.MakePool("web"))
				r.Settle(pool)
				old := unsort(pool, labels(pool))
				Expect(K8sClient.Delete(ctx, pool, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
				r.Step(pool)
				r.ExpectSteady(pool)
				expectOrphaned(pool, old.Data.Raw)
			},
			Entry("those of an earlier version", ours),
			Entry("those of KubeVirt, which have no label", func(*poolv1.VirtualMachinePool) map[string]string { return nil }),
		)

		It("that cannot be deleted are reported", func() {
			pool := r.running(builder.MakePool("web").Replicas(0))
			r.change(pool, hostname("b"))
			r.Writes.Fail = func(request string) error {
				if request == deleteRevision {
					return ErrInjected
				}
				return nil
			}
			_, err := r.Try(pool)
			Expect(err).To(MatchError(ErrInjected))
			Expect(ExpectExists(pool)).To(havePoolCondition(poolFailure, "FailedRevisionPruning", ErrInjected.Error()))
		})
	})

	Describe("healing", func() {
		It("replaces a VM with its disks when it has failed for long enough", func() {
			pool := r.create(builder.MakePool("web").Replicas(2).With(healing).With(func(s *poolSpec) {
				descending(s)
				s.ScaleInStrategy.Proactive.StatePreservation = ptr.To(poolv1.StatePreservationOffline)
			}))
			r.Settle(pool)
			r.fails("web-0", v1.VirtualMachineStatusErrImagePull, 2*time.Minute)
			r.fails("web-1", v1.VirtualMachineStatusUnschedulable, time.Hour)
			Expect(r.ExpectSteady(pool).RequeueAfter).To(BeNumerically("~", 3*time.Minute, time.Second))
			r.clock.SetTime(r.clock.Now().Add(3*time.Minute + time.Second))
			r.Step(pool)
			Expect(r.vm("web-0").Finalizers).To(ContainElement(metav1.FinalizerDeleteDependents))
			r.Step(pool)
			EditVM(r.vm("web-0"), func(vm *v1.VirtualMachine) { vm.Finalizers = nil }) // in place of the garbage collector
			r.Step(pool)
			Expect(r.names()).To(Equal([]string{"web-0", "web-1"}))
		})

		It("waits while the pool is paused or being deleted", func() {
			pool := r.create(builder.MakePool("web").With(healing))
			pool.Finalizers = []string{"test/hold"}
			Expect(K8sClient.Update(ctx, pool)).To(Succeed())
			r.Settle(pool)
			r.status("web-0", func(s *v1.VirtualMachineStatus) {
				s.StartFailure = &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 3}
			})
			r.change(pool, func(s *poolSpec) { s.Paused = true })
			r.Step(pool)
			r.change(pool, func(s *poolSpec) { s.Paused = false })
			Expect(K8sClient.Delete(ctx, pool)).To(Succeed())
			r.Step(pool)
			Expect(r.vm("web-0").DeletionTimestamp).To(BeNil())
		})

		It("spares a VM that changes at the last moment", func() {
			pool := r.create(builder.MakePool("web").With(healing))
			r.Settle(pool)
			r.status("web-0", func(s *v1.VirtualMachineStatus) {
				s.StartFailure = &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 3}
			})
			r.Writes.Fail = func(request string) error {
				if request == deleteVM {
					r.status("web-0", func(s *v1.VirtualMachineStatus) { s.StartFailure = nil })
				}
				return nil
			}
			result, err := r.Try(pool)
			Expect(err).NotTo(HaveOccurred())
			Expect(result).NotTo(BeZero())
			Expect(r.vm("web-0").DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(pool)).To(haveNoPoolConditions())
		})
	})
})
