// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine reconciler", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	strategy := func(vm *v1.VirtualMachine, s v1.VirtualMachineRunStrategy) {
		GinkgoHelper()
		ExpectExists(vm).Spec.RunStrategy = &s
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
	}
	request := func(vm *v1.VirtualMachine, requests ...v1.VirtualMachineStateChangeRequest) {
		GinkgoHelper()
		ExpectExists(vm).Status.StateChangeRequests = requests
		ExpectStatus(vm)
	}
	start := v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}
	stop := func(vmi *v1.VirtualMachineInstance) v1.VirtualMachineStateChangeRequest {
		return v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: ptr.To(vmi.UID)}
	}

	// The write budget of a start, as docs/benchmarks.md counts it: the VM's status twice, and a revision of each object
	// that the start stores.
	DescribeTable("starts a VM with two writes of its status", func(change func(*v1.VirtualMachine), revisions ...string) {
		ExpectCreated(NewInstancetype(m.ns, "small", 2), NewPreference(m.ns, "linux"))
		vm := m.create(builder.MakeVM("vm").With(change))
		m.ExpectBudget(vm, append(revisions, createInstance, patchVMStatus)...)
		vmi := InstanceOf(vm)
		for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduling, v1.Scheduled} {
			SetVMIStatus(vmi, phase, revised(vmi))
			m.ExpectSteady(vm)
		}
		SetVMIStatus(vmi, v1.Running, Running)
		m.ExpectBudget(vm, patchVMStatus)
		m.ExpectSteady(vm)
	},
		Entry("that has a template only", func(*v1.VirtualMachine) {}, createVMRevision),
		Entry("that has an instance type and a preference", func(vm *v1.VirtualMachine) {
			WithInstancetype("small")(vm)
			WithPreference("linux")(vm)
		}, createVMRevision, createVMRevision, createVMRevision),
	)

	It("starts a VM", func() {
		vm := m.create(builder.MakeVM("vm").Label("on", "vm").Template(
			builder.MakeVMI("ignored").Label("on", "template").Annotation("note", "x")))
		m.Step(vm)
		Expect(m.events.Take()).To(ConsistOf(
			"Normal SuccessfulCreate: Started the virtual machine by creating the new virtual machine instance vm"))
		vmi := InstanceOf(vm)
		Expect(vmi.Labels).To(Equal(map[string]string{"on": "template"}), "the VM's own labels are not copied to the VMI")
		Expect(vmi.Annotations).To(HaveKeyWithValue("note", "x"))
		Expect(vmi.Annotations).To(HaveKeyWithValue(v1.VirtualMachineGenerationAnnotation, "1"))
		Expect(vmi.Finalizers).To(ConsistOf(v1.VirtualMachineInstanceFinalizer, v1.VirtualMachineControllerFinalizer))
		Expect(metav1.IsControlledBy(vmi, vm)).To(BeTrue())
		Expect(vmi.Spec.Domain.Firmware.UUID).NotTo(BeEmpty())

		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
		Expect(vm.Status.Created).To(BeTrue())
		Expect(vm.Status.Ready).To(BeFalse())
		Expect(vm.Status.ObservedGeneration).To(BeEquivalentTo(1))
		Expect(vm).To(HaveVMCondition(v1.VirtualMachineReady, corev1.ConditionFalse, "VMIConditionMissing", ""))
		m.expectQuiet(vm)

		SetVMIStatus(vmi, v1.Scheduled,
			WithCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "GuestNotRunning", "soon"))
		m.expectQuiet(vm)

		SetVMIStatus(vmi, v1.Running, Running,
			WithCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", ""))
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		Expect(vm.Status.Ready).To(BeTrue())
		Expect(vm).To(HaveVMCondition(v1.VirtualMachineReady, corev1.ConditionTrue, "", ""))
		Expect(vm).To(HaveVMCondition("LiveMigratable", corev1.ConditionTrue, "", ""))
		m.expectQuiet(vm)

		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			vmistatus.RemoveCondition(s, v1.VirtualMachineInstanceIsMigratable)
		})
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition("LiveMigratable"))
	})

	It("adds the finalizer to a VM without it", func() {
		vm := builder.MakeVM("vm").Namespace(m.ns).Strategy(v1.RunStrategyHalted).Obj()
		ExpectCreated(vm)
		m.Step(vm)
		Expect(ExpectExists(vm).Finalizers).To(ConsistOf(v1.VirtualMachineControllerFinalizer))
		Expect(vm).To(HaveVMCondition(v1.VirtualMachineReady, corev1.ConditionFalse, "VMINotExists", ""))
	})

	It("does not start a Halted VM", func() {
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted))
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		ExpectGone(InstanceKey(vm))
		m.expectQuiet(vm)
	})

	It("starts a VM with spec.running: true", func() {
		vm := m.create(builder.MakeVM("vm").With(func(vm *v1.VirtualMachine) {
			vm.Spec.RunStrategy, vm.Spec.Running = nil, ptr.To(true)
		}))
		m.Step(vm)
		Expect(metav1.IsControlledBy(InstanceOf(vm), vm)).To(BeTrue())
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
	})

	It("stops a VM that becomes Halted, and shows each step in printableStatus", func() {
		vm, vmi := m.started(builder.MakeVM("vm"))
		strategy(vm, v1.RunStrategyHalted)
		m.Step(vm)
		Expect(m.events.Take()).To(ConsistOf(
			HavePrefix("Normal SuccessfulDelete: Stopped the virtual machine by deleting the virtual machine instance " +
				string(vmi.UID))))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopping))
		expectStopping(vmi)
		m.expectQuiet(vm)

		SetVMIStatus(vmi, v1.Succeeded)
		removeFinalizer(vmi)
		// The finalizer is removed last: the VM's status has what it takes from the instance before that is gone.
		m.ExpectOrder(vm, patchVMStatus, patchInstance)
		ExpectGone(vmi)
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		Expect(vm.Status.Created).To(BeFalse())
		m.expectQuiet(vm)
	})

	It("restarts an Always VM after the guest powered off", func() {
		vm, vmi := m.started(builder.MakeVM("vm"))
		SetVMIStatus(vmi, v1.Succeeded)
		removeFinalizer(vmi)
		m.Step(vm)
		expectStopping(vmi)
		m.Step(vm)
		ExpectGone(vmi)
		m.Step(vm)
		Expect(InstanceOf(vm).UID).NotTo(Equal(vmi.UID))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
		Expect(vm.Status.StartFailure).To(BeNil())
	})

	It("backs off after failed starts, longer each time", func() {
		vm := m.create(builder.MakeVM("vm"))
		var last time.Duration
		for n := range 2 {
			m.Step(vm)
			vmi := InstanceOf(vm)
			SetVMIStatus(vmi, v1.Failed)
			removeFinalizer(vmi)
			m.Step(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusCrashLoopBackOff))
			Expect(vm.Status.StartFailure.ConsecutiveFailCount).To(Equal(n + 1))
			Expect(vm.Status.StartFailure.LastFailedVMIUID).To(Equal(vmi.UID))
			m.Step(vm)
			ExpectGone(vmi)
			result := m.Step(vm)
			ExpectGone(InstanceKey(vm))
			Expect(result.RequeueAfter).To(BeNumerically(">", last))
			last = result.RequeueAfter
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusCrashLoopBackOff))
			m.clock.SetTime(m.clock.Now().Add(result.RequeueAfter + time.Second))
		}
		m.Step(vm)
		SetVMIStatus(InstanceOf(vm), v1.Running, Running)
		m.Step(vm)
		Expect(ExpectExists(vm).Status.StartFailure).To(BeNil())
	})

	It("starts and stops a Manual VM on request only", func() {
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyManual))
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		ExpectGone(InstanceKey(vm))

		request(vm, v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest, Data: map[string]string{"paused": "true"}})
		m.Step(vm)
		Expect(ExpectExists(vm).Status.StateChangeRequests).To(BeEmpty())
		vmi := InstanceOf(vm)
		Expect(vmi.Spec.StartStrategy).To(HaveValue(Equal(v1.StartStrategyPaused)))
		m.events.Take()
		m.expectQuiet(vm)

		SetVMIStatus(vmi, v1.Running, Running)
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		SetVMIStatus(vmi, v1.Succeeded)
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		Expect(InstanceOf(vm).DeletionTimestamp).To(BeNil(), "the finished VMI of a Manual VM is kept")

		request(vm, start)
		m.Step(vm)
		expectStopping(vmi)
		removeFinalizer(vmi)
		m.Step(vm)
		ExpectGone(vmi)
		m.Step(vm)
		again := InstanceOf(vm)
		Expect(again.UID).NotTo(Equal(vmi.UID))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
		Expect(vm.Status.StateChangeRequests).To(BeEmpty())

		request(vm, stop(again))
		m.Step(vm)
		expectStopping(again)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopping))
	})

	It("restarts a VM on a stop request and a start request", func() {
		vm, vmi := m.started(builder.MakeVM("vm"))
		request(vm, stop(vmi), start)
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopping))
		expectStopping(vmi)
		SetVMIStatus(vmi, v1.Succeeded)
		removeFinalizer(vmi)
		m.Step(vm)
		ExpectGone(vmi)
		m.Step(vm)
		Expect(ExpectExists(vm).Status.StateChangeRequests).To(BeEmpty())
		Expect(InstanceOf(vm).UID).NotTo(Equal(vmi.UID))
	})

	It("drops a stop request with the UID of an earlier VMI", func() {
		vm, _ := m.started(builder.MakeVM("vm"))
		request(vm, stop(&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: "gone"}}))
		m.Step(vm)
		Expect(ExpectExists(vm).Status.StateChangeRequests).To(BeEmpty())
		Expect(InstanceOf(vm).DeletionTimestamp).To(BeNil())
	})

	It("restarts a RerunOnFailure VM after a failure and not after a success", func() {
		vm, vmi := m.started(builder.MakeVM("vm").Strategy(v1.RunStrategyRerunOnFailure))
		SetVMIStatus(vmi, v1.Failed)
		removeFinalizer(vmi)
		m.Step(vm) // that it must start again
		Expect(InstanceOf(vm).DeletionTimestamp).To(BeNil(), "its failure is recorded before it is deleted")
		m.Step(vm)
		expectStopping(vmi)
		m.Step(vm)
		ExpectGone(vmi)
		m.Step(vm)
		Expect(InstanceOf(vm).UID).NotTo(Equal(vmi.UID))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))

		vmi = InstanceOf(vm)
		SetVMIStatus(vmi, v1.Running, Running)
		m.Step(vm)
		SetVMIStatus(vmi, v1.Succeeded)
		removeFinalizer(vmi)
		m.Settle(vm)
		ExpectGone(InstanceKey(vm))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("starts a Once VM only once", func() {
		vm, vmi := m.started(builder.MakeVM("vm").Strategy(v1.RunStrategyOnce))
		SetVMIStatus(vmi, v1.Succeeded)
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopped))
		Expect(InstanceOf(vm).DeletionTimestamp).To(BeNil())
		m.expectQuiet(vm)
	})

	It("reports a run strategy that is not implemented", func() {
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyWaitAsReceiver))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FieldNotImplemented",
			"WaitAsReceiver is not implemented"))
		ExpectGone(InstanceKey(vm))
	})

	It("adopts a VMI of the VM's name without an owner", func() {
		vmi := builder.MakeVMI("vm").Namespace(m.ns).Obj()
		ExpectCreated(vmi)
		vm := m.create(builder.MakeVM("vm"))
		m.Step(vm)
		ExpectExists(vmi)
		Expect(metav1.IsControlledBy(vmi, vm)).To(BeTrue())
		Expect(vmi.Finalizers).To(ContainElement(v1.VirtualMachineControllerFinalizer))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
		m.expectQuiet(vm)
	})

	It("does not touch a VMI that another VM controls, and reports it", func() {
		other := builder.MakeVM("other").UID("6a1a24a1-4061-4607-8bf4-000000000000").Obj()
		vmi := builder.MakeVMI("vm").Namespace(m.ns).OwnedBy(other).Obj()
		ExpectCreated(vmi)
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate", "other"))
		Expect(m.events.Take()).To(ConsistOf(HavePrefix(`Warning FailedCreate: Error creating virtual machine instance: VirtualMachineInstance "vm" already exists`)))
		Expect(ExpectExists(vmi).DeletionTimestamp).To(BeNil())
		Expect(vmi.OwnerReferences).To(ConsistOf(HaveField("Name", "other")))
		Expect(vmi.Finalizers).To(BeEmpty())
		m.expectQuiet(vm)
	})

	It("creates no second VMI with a stale cache", func() {
		vm, vmi := m.started(builder.MakeVM("vm"))
		m.Writes.Blind = func(_ client.ObjectKey, o client.Object) bool {
			_, is := o.(*v1.VirtualMachineInstance)
			return is
		}
		m.Step(vm)
		Expect(m.events.Take()).To(BeEmpty())
		Expect(InstanceOf(vm).UID).To(Equal(vmi.UID))
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
	})

	It("overwrites no status with a stale cache", func() {
		vm := m.create(builder.MakeVM("vm"))
		m.Writes.Stale = ExpectExists(vm).DeepCopy()
		m.Step(vm)
		m.events.Take()
		SetVMIStatus(InstanceOf(vm), v1.Running, Running)
		Expect(m.Step(vm)).NotTo(BeZero(), "the API server refuses what is written")
		Expect(m.events.Take()).To(BeEmpty())
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
		m.Writes.Stale = nil
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusRunning))
		m.expectQuiet(vm)
	})

	It("reports once why a VMI cannot be created, and retries", func() {
		vm := m.create(builder.MakeVM("vm"))
		denied := func(request string) error {
			if request == createInstance {
				return apierrors.NewForbidden(v1.GroupVersion.WithResource("vmis").GroupResource(), "vm", errors.New("denied"))
			}
			return nil
		}
		refuseOnce := func(request string) error {
			if request == patchVMStatus {
				m.Writes.Fail = denied
				return apierrors.NewConflict(v1.GroupVersion.WithResource("vms").GroupResource(), "vm", ErrInjected)
			}
			return denied(request)
		}
		m.Writes.Fail = refuseOnce
		for range 3 {
			_, err := m.Try(vm)
			Expect(err).To(MatchError(ContainSubstring("denied")))
		}
		Expect(m.events.Take()).To(ConsistOf(HavePrefix("Warning FailedCreate: Error creating virtual machine instance: ")))
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate", "denied"))
		m.Writes.Take()
		_, err := m.Try(vm)
		Expect(err).To(MatchError(ContainSubstring("denied")))
		Expect(m.Writes.Take()).To(ConsistOf(createInstance), "a failure that stays the same is written once")
		Expect(m.events.Take()).To(BeEmpty())
		m.Writes.Fail = nil
		m.Step(vm)
		Expect(metav1.IsControlledBy(InstanceOf(vm), vm)).To(BeTrue())
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
	})

	It("reconciles again after a conflict", func() {
		vm := m.create(builder.MakeVM("vm"))
		m.Writes.Fail = func(request string) error {
			if request == patchVMStatus {
				return apierrors.NewConflict(v1.GroupVersion.WithResource("vms").GroupResource(), "vm", ErrInjected)
			}
			return nil
		}
		Expect(m.Step(vm)).NotTo(BeZero())
		m.Writes.Fail = nil
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStarting))
		m.ExpectSteady(vm)
	})

	Context("when it is deleted", func() {
		It("stops the VMI first", func() {
			vm, vmi := m.started(builder.MakeVM("vm"))
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
			m.Step(vm)
			Expect(show(vm)).To(Equal(v1.VirtualMachineStatusTerminating))
			expectStopping(vmi)
			m.events.Take()
			m.expectQuiet(vm)
			SetVMIStatus(vmi, v1.Succeeded)
			removeFinalizer(vmi)
			m.Step(vm)
			ExpectGone(vmi)
			m.Step(vm)
			ExpectGone(vm)
		})

		It("does nothing that is written to its spec then, which no webhook validates", func() {
			vm, vmi := m.started(builder.MakeVM("vm"))
			ExpectExists(vm).Finalizers = append(vm.Finalizers, "user/finalizer")
			Expect(K8sClient.Update(ctx, vm)).To(Succeed())
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
			ExpectExists(vm)
			vm.Spec.RunStrategy, vm.Spec.Running = ptr.To(v1.RunStrategyAlways), nil
			vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "any"}
			vm.Spec.Template.Spec.Hostname = "changed"
			vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "disk"}}}
			Expect(K8sClient.Update(ctx, vm)).To(Succeed())
			m.Step(vm)
			expectStopping(vmi)
			SetVMIStatus(vmi, v1.Succeeded)
			removeFinalizer(vmi)
			for range 4 {
				m.Step(vm)
				ExpectGone(vmi)
			}
			ExpectGone(DataVolume(m.ns, "disk"))
			Expect(m.revisions(vm)).To(ConsistOf(HaveField("Revision", int64(1))))
			Expect(ExpectExists(vm).Finalizers).To(ConsistOf("user/finalizer"))
		})

		It("keeps the VMI if the propagation policy is Orphan", func() {
			vm, vmi := m.started(builder.MakeVM("vm"))
			Expect(K8sClient.Delete(ctx, vm, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
			m.Step(vm)
			ExpectExists(vmi)
			Expect(vmi.OwnerReferences).To(BeEmpty())
			Expect(vmi.DeletionTimestamp).To(BeNil())
			Expect(vmi.Finalizers).NotTo(ContainElement(v1.VirtualMachineControllerFinalizer))
			Expect(ExpectExists(vm).Finalizers).To(ConsistOf(metav1.FinalizerOrphanDependents))
		})

		It("removes its finalizer from a VMI that the garbage collector orphaned first", func() {
			vm, vmi := m.started(builder.MakeVM("vm"))
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
			ExpectExists(vmi).OwnerReferences = nil
			Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
			m.Step(vm)
			ExpectExists(vmi)
			Expect(vmi.DeletionTimestamp).To(BeNil())
			Expect(vmi.Finalizers).NotTo(ContainElement(v1.VirtualMachineControllerFinalizer))
			ExpectGone(vm)
		})

		It("keeps its finalizer while the API server has a VMI that the cache does not contain", func() {
			vm, _ := m.started(builder.MakeVM("vm"))
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
			m.Writes.Blind = func(_ client.ObjectKey, o client.Object) bool {
				_, is := o.(*v1.VirtualMachineInstance)
				return is
			}
			m.Step(vm)
			Expect(ExpectExists(vm).Finalizers).To(ContainElement(v1.VirtualMachineControllerFinalizer))
		})

		It("keeps the finalizer of a VMI of the VM's name whose controller has another group or kind", func() {
			for name, change := range map[string]func(*metav1.OwnerReference){
				"group": func(owner *metav1.OwnerReference) { owner.APIVersion = "team.example/v1" },
				"kind":  func(owner *metav1.OwnerReference) { owner.Kind = "VirtualMachinePool" },
			} {
				vm, vmi := m.started(builder.MakeVM("foreign-" + name))
				owner := &ExpectExists(vmi).OwnerReferences[0]
				owner.UID = "another"
				change(owner)
				Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
				Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
				SetVMIStatus(vmi, v1.Succeeded)
				removeFinalizer(vmi)
				m.Step(vm)
				Expect(ExpectExists(vmi).Finalizers).To(ContainElement(v1.VirtualMachineControllerFinalizer), name)
			}
		})

		It("keeps the finalizer of a VMI whose controller has another group or name, when the VM is gone", func() {
			for name, change := range map[string]func(*metav1.OwnerReference){
				"group": func(owner *metav1.OwnerReference) { owner.APIVersion = "team.example/v1" },
				"name":  func(owner *metav1.OwnerReference) { owner.Name = "other" },
			} {
				vm, vmi := m.started(builder.MakeVM("vm-" + name))
				vm.Finalizers = nil
				Expect(K8sClient.Update(ctx, vm)).To(Succeed())
				Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
				change(&ExpectExists(vmi).OwnerReferences[0])
				Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
				Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
				SetVMIStatus(vmi, v1.Succeeded)
				removeFinalizer(vmi)
				m.expectQuiet(vm)
				Expect(ExpectExists(vmi).Finalizers).To(ContainElement(v1.VirtualMachineControllerFinalizer), name)
			}
		})

		It("removes the finalizer of a VMI whose VM was replaced by one of its name that the cache does not contain", func() {
			vm, vmi := m.started(builder.MakeVM("vm"))
			vm.Finalizers = nil
			Expect(K8sClient.Update(ctx, vm)).To(Succeed())
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
			Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
			SetVMIStatus(vmi, v1.Succeeded)
			removeFinalizer(vmi)
			m.create(builder.MakeVM("vm"))
			m.Writes.Blind = func(_ client.ObjectKey, o client.Object) bool {
				_, is := o.(*v1.VirtualMachine)
				return is
			}
			m.Step(vm)
			ExpectGone(vmi)
		})

		It("removes the finalizer of a finished VMI whose VM is gone", func() {
			vm, vmi := m.started(builder.MakeVM("vm"))
			vm.Finalizers = nil
			Expect(K8sClient.Update(ctx, vm)).To(Succeed())
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
			Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
			m.expectQuiet(vm)
			SetVMIStatus(vmi, v1.Succeeded)
			removeFinalizer(vmi)
			m.Step(vm)
			ExpectGone(vmi)
		})
	})

	DescribeTable("shows in printableStatus why the VMI does not run",
		func(kind v1.VirtualMachineInstanceConditionType, reason string, shown v1.VirtualMachinePrintableStatus) {
			vm := m.create(builder.MakeVM("vm"))
			m.Step(vm)
			SetVMIStatus(InstanceOf(vm), v1.Scheduling, WithCondition(kind, corev1.ConditionFalse, reason, "because"))
			m.Step(vm)
			Expect(show(vm)).To(Equal(shown))
			Expect(vm).To(HaveVMCondition(v1.VirtualMachineConditionType(kind), corev1.ConditionFalse, reason, "because"))
		},
		Entry(nil, v1.VirtualMachineInstanceSynchronized, "FailedPvcNotFound", v1.VirtualMachineStatusPvcNotFound),
		Entry(nil, v1.VirtualMachineInstanceSynchronized, "ErrImagePull", v1.VirtualMachineStatusErrImagePull),
		Entry(nil, v1.VirtualMachineInstanceSynchronized, "ImagePullBackOff", v1.VirtualMachineStatusImagePullBackOff),
		Entry(nil, v1.VirtualMachineInstancePodScheduled, "Unschedulable", v1.VirtualMachineStatusUnschedulable),
	)
})
