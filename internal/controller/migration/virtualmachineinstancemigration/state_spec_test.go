// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"errors"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/migration/virtualmachineinstancemigration"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A VirtualMachineInstanceMigration of a VMI with persistent state", func() {
	var (
		m   *migrations
		vm  *v1.VirtualMachine
		vmi *v1.VirtualMachineInstance
		// first is the claim with which the guest was started.
		first *corev1.PersistentVolumeClaim
	)
	BeforeEach(func() {
		m = newMigrations()
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		m.host("a")
		vm = builder.MakeVM("vm").Namespace(m.ns).Template(PersistentVMI()).Obj()
		ExpectCreated(vm)
		vm = ExpectExists(vm)
		vmi = CreateVMI(m.ns, PersistentVMI().OwnedBy(vm))
		m.vmis.Step(vmi)
		m.runLauncher(vmi, m.node("a"))
		ReportAsAgent(vmi, Running)
		first = StateClaimOf(vmi)
		m.recorded.Take()
	})
	// second returns the claim of the migration's target.
	second := func(vmim *v1.VirtualMachineInstanceMigration) *corev1.PersistentVolumeClaim {
		GinkgoHelper()
		return ExpectExists(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.ns, Name: StateClaimIn(ExpectExists(m.target(vmi, vmim)))}})
	}
	gone := func(claim *corev1.PersistentVolumeClaim) bool {
		GinkgoHelper()
		fresh := claim.DeepCopy()
		err := K8sClient.Get(ctx, client.ObjectKeyFromObject(claim), fresh)
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		return err != nil || fresh.DeletionTimestamp != nil
	}
	// nextUses restarts the VM and returns the claim that the new Pod mounts.
	nextUses := func() string {
		GinkgoHelper()
		fresh := ExpectExists(vmi)
		if fresh.DeletionTimestamp == nil {
			Expect(K8sClient.Delete(ctx, fresh)).To(Succeed())
		}
		for range 3 {
			m.vmis.Step(vmi)
			m.clock.SetTime(m.clock.Now().Add(ShownFor))
		}
		ExpectGone(vmi)
		next := CreateVMI(m.ns, PersistentVMI().OwnedBy(vm))
		m.vmis.Step(next)
		return StateClaimIn(ExpectExists(PodOf(next)))
	}
	end := func(pod *corev1.Pod, outcome string) {
		GinkgoHelper()
		m.setPodStatus(pod, "", builder.MakePodStatus().Terminated(0, "Completed", outcome))
	}
	// removeByForce deletes a migration without its finalizers.
	removeByForce := func(vmim *v1.VirtualMachineInstanceMigration) {
		GinkgoHelper()
		before := ExpectExists(vmim).DeepCopy()
		vmim.Finalizers = nil
		Expect(K8sClient.Patch(ctx, vmim, client.MergeFrom(before))).To(Succeed())
		Expect(K8sClient.Delete(ctx, vmim)).To(Succeed())
		Expect(virtualmachineinstancemigration.RemoveOrphans(ctx, K8sClient, K8sClient, client.ObjectKeyFromObject(vmim))).
			To(Succeed())
	}
	// endedUnobserved migrates the guest and ends it before virt-controller has reconciled, and returns the target's
	// claim.
	endedUnobserved := func() *corev1.PersistentVolumeClaim {
		GinkgoHelper()
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		claim, source, target := second(vmim), PodOf(vmi), m.target(vmi, vmim)
		a.complete()
		a.act()
		end(source, outcomeMigrated)
		end(target, outcomeShutdown)
		Expect(K8sClient.Delete(ctx, ExpectExists(vmi))).To(Succeed())
		return claim
	}

	It("creates a claim for the target, which becomes the VM's when the target owns the guest", func() {
		source := PodOf(vmi)
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		claim := second(vmim)
		Expect(claim.Name).To(And(HavePrefix("persistent-state-for-vm-"), Not(Equal(first.Name))))
		Expect(claim.Labels).To(Equal(map[string]string{v1.MigrationNameLabel: "go"}), "a start must not use it")
		Expect(metav1.IsControlledBy(claim, vm)).To(BeTrue())
		Expect(claim.Spec.AccessModes).To(Equal(first.Spec.AccessModes))
		Expect(claim.Spec.StorageClassName).To(Equal(first.Spec.StorageClassName))
		Expect(claim.Spec.Resources.Requests).To(Equal(first.Spec.Resources.Requests))
		Expect(m.recorded.Take()).To(ContainElement("Normal SuccessfulCreate: Created PersistentVolumeClaim " + claim.Name +
			" for the TPM's and EFI's state at the target"))
		state := ExpectExists(vmim).Status.MigrationState
		Expect([]string{state.SourcePersistentStatePVCName, state.TargetPersistentStatePVCName}).
			To(Equal([]string{first.Name, claim.Name}))

		target := ExpectExists(m.target(vmi, vmim))
		m.setPodStatus(target, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		state = ExpectExists(vmi).Status.MigrationState
		Expect([]string{state.SourcePersistentStatePVCName, state.TargetPersistentStatePVCName}).
			To(Equal([]string{first.Name, claim.Name}))
		a := &agents{vmi: vmi}
		a.prepare()
		a.act()
		m.reconcileAll(vmim)
		Expect(gone(first)).To(BeFalse())
		Expect(ExpectExists(claim).Labels).NotTo(HaveKey(v1.PersistentStateLabel))

		a.complete()
		a.act()
		names := func() []string {
			var out []string
			for _, v := range ExpectExists(vmi).Status.VolumeStatus {
				out = append(out, v.Name)
			}
			return out
		}
		Expect(names()).To(ConsistOf(claim.Name), "in the write that transferred ownership")
		m.reconcileAll(vmim)
		Expect(ExpectExists(claim).Labels).To(Equal(map[string]string{v1.PersistentStateLabel: "vm"}))
		Expect(gone(first)).To(BeTrue())
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationSucceeded))
		Expect(names()).To(ConsistOf(claim.Name))

		end(source, outcomeMigrated)
		end(target, outcomeShutdown)
		m.reconcileAll(vmim)
		m.remove(source)
		m.remove(target)
		Expect(nextUses()).To(Equal(claim.Name))
	})

	It("keeps the VM's claim when it fails, and deletes the target's", func() {
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		claim := second(vmim)
		a.fail()
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(gone(claim)).To(BeTrue())
		Expect(gone(first)).To(BeFalse())

		By("creating another one for the next migration")
		m.remove(m.target(vmi, vmim))
		again := m.request(builder.MakeMigration("again", "vm"))
		m.reconcileAll(again)
		Expect(second(again).Name).NotTo(Equal(claim.Name))
	})

	It("deletes the target's claim with the Pod when it is deleted before it is assigned to the agents", func() {
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		claim := second(vmim)
		Expect(K8sClient.Delete(ctx, ExpectExists(vmim))).To(Succeed())
		m.reconcileAll(vmim)
		Expect(gone(claim)).To(BeTrue())
		Expect(gone(first)).To(BeFalse())
	})

	It("deletes the target's claim when the migration was removed by force before it was assigned to the agents", func() {
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		claim := second(vmim)
		removeByForce(vmim)
		Expect(gone(claim)).To(BeTrue())
		Expect(gone(first)).To(BeFalse())
	})

	It("keeps the target's claim when the migration was removed by force afterwards, until the VMI's reconciler decides",
		func() {
			vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
			claim := second(vmim)
			removeByForce(vmim)
			Expect(gone(claim)).To(BeFalse())
			a.complete()
			a.act()
			m.vmis.Step(vmi)
			Expect(ExpectExists(claim).Labels).To(HaveKeyWithValue(v1.PersistentStateLabel, "vm"))
			Expect(gone(first)).To(BeTrue())
		})

	It("decides on the claims before the VMI is removed, also if nothing was reconciled in between", func() {
		claim := endedUnobserved()
		Expect(nextUses()).To(Equal(claim.Name))
		Expect(gone(first)).To(BeTrue())
	})

	It("keeps the VMI while the claims cannot be written", func() {
		claim := endedUnobserved()
		m.vmis.Writes.Fail = func(request string) error {
			if strings.HasPrefix(request, "patch PersistentVolumeClaim") {
				return apierrors.NewInternalError(errors.New("not now"))
			}
			return nil
		}
		for range 3 {
			_, _ = m.vmis.Try(vmi)
		}
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
		Expect(gone(first)).To(BeFalse(), "the other claim is not the VM's yet")
		m.vmis.Writes.Fail = nil
		Expect(nextUses()).To(Equal(claim.Name))
	})

	It("starts with the target's claim after a guest that was transferred and never reported to run on the target",
		func() {
			vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
			claim, source, target := second(vmim), PodOf(vmi), m.target(vmi, vmim)
			a.sourceDead, a.targetDead = true, true
			end(source, outcomeMigrated)
			end(target, outcomeShutdown)
			m.reconcileAll(vmim)
			Expect(ExpectExists(vmi).Status.Reason).To(Equal(vmistatus.ReasonLostInMigration))
			Expect(nextUses()).To(Equal(claim.Name))
			Expect(gone(first)).To(BeTrue())
		})

	It("starts with the source's claim after a guest that ended on the source", func() {
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		claim, source := second(vmim), PodOf(vmi)
		a.sourceDead, a.targetDead = true, true
		end(source, outcomeShutdown)
		m.reconcileAll(vmim)
		m.remove(m.target(vmi, vmim))
		m.reconcileAll(vmim)
		Expect(nextUses()).To(Equal(first.Name))
		Expect(gone(claim)).To(BeTrue())
	})

	It("does not start before the claims of the previous migration are decided", func() {
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		source := PodOf(vmi)
		a.complete()
		a.act()
		end(source, outcomeMigrated)
		m.remove(source)
		again := m.request(builder.MakeMigration("again", "vm"))
		for range 3 {
			m.Step(vmim)
			m.Step(again)
		}
		ExpectGone(m.target(ExpectExists(vmi), again))
		Expect(ExpectExists(again).Status.Phase).To(Equal(v1.MigrationPending))
		claim := ExpectExists(
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns,
				Name: vmi.Status.MigrationState.TargetPersistentStatePVCName}})
		m.vmis.Step(vmi)
		Expect(m.reconciler.OfState(ctx, ExpectExists(claim))).
			To(ContainElement(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(again)}))
		m.reconcileAll(again)
		Expect(second(again).Name).NotTo(Or(Equal(first.Name), Equal(claim.Name)))
	})

	It("uses the same claim on both nodes if it is ReadWriteMany", func() {
		other := builder.MakePVC("shared").Namespace(m.ns).Bound("10Mi").Obj()
		other.Labels = map[string]string{"persistent-state-for": "other"}
		other.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		ExpectCreated(other)
		shared := m.assignedTo(m.node("a"), builder.MakeVMI("other").EFI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec = PersistentVMI().Obj().Spec
		}))
		ReportAsAgent(shared, Running)
		vmim := m.request(builder.MakeMigration("go-shared", "other"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(shared, vmim))
		Expect(StateClaimIn(target)).To(Equal("shared"))
		Expect(target.Spec.Containers[0].Env).To(ContainElement(HaveField("Name", "SHARED_FILESYSTEM_PATHS")))
		m.setPodStatus(target, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		state := ExpectExists(shared).Status.MigrationState
		Expect(state.TargetPersistentStatePVCName).To(Equal("shared"))
		Expect(vmistatus.MovesState(state)).To(BeFalse())
	})

	It("waits while a quota for claims is exceeded", func() {
		m.Writes.Fail = func(request string) error {
			if strings.HasPrefix(request, "create PersistentVolumeClaim") {
				return apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "x", errors.New("exceeded quota: compute"))
			}
			return nil
		}
		vmim := m.request(builder.MakeMigration("go", "vm"))
		for range 3 {
			m.Step(vmim)
		}
		Expect(ExpectExists(vmim)).To(
			haveMigrationCondition(v1.VirtualMachineInstanceMigrationRejectedByResourceQuota, "exceeded quota"))
		ExpectGone(m.target(vmi, vmim))
		m.Writes.Fail = nil
		m.reconcileAll(vmim)
		second(vmim)
	})
})
