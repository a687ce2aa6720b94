// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A VirtualMachineInstanceMigration", func() {
	It("migrates a guest to another node, and updates the VMI", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		source := PodOf(vmi)
		// As created by a version that did not record the migration transport.
		delete(ExpectExists(source).Annotations, v1.MigrationTransportUnixAnnotation)
		Expect(K8sClient.Update(ctx, source)).To(Succeed())
		vmi.Status.MigrationTransport = ""
		ExpectStatus(vmi)
		vmim := m.request(builder.MakeMigration("go", "vm").NodeSelector("rack", "7"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationScheduling))
		Expect(vmim.Finalizers).To(ConsistOf(v1.VirtualMachineInstanceMigrationFinalizer))
		Expect(vmim.Labels).To(HaveKeyWithValue(v1.MigrationSelectorLabel, "vm"))
		target := ExpectExists(m.target(vmi, vmim))
		Expect(target.Labels).To(HaveKeyWithValue(v1.MigrationJobLabel, string(vmim.UID)))
		Expect(target.Annotations).To(
			And(HaveKeyWithValue(v1.MigrationJobNameAnnotation, "go"),
				HaveKeyWithValue(v1.MigrationTransportUnixAnnotation, "true")))
		Expect(target.Spec.NodeSelector).To(And(HaveKeyWithValue("rack", "7"),
			HaveKeyWithValue(v1.SupportedHostModelMigrationCPU+"Skylake", "true")))

		m.setPodStatus(target, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		state := ExpectExists(vmi).Status.MigrationState
		Expect(state.MigrationUID).To(Equal(vmim.UID))
		Expect([]string{state.SourceNode, state.SourcePod, state.TargetNode, state.TargetPod}).
			To(Equal([]string{m.node("a"), source.Name, m.node("b"), target.Name}))
		Expect(*state.VMIMConfigurationOptions.CompletionTimeoutPerGiB).To(BeEquivalentTo(150))
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.EvictionSourceAnnotation, "descheduler")
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Annotations).To(HaveKey(v1.EvictionSourceAnnotation))
		Expect(vmi.Labels).To(
			And(HaveKeyWithValue(v1.NodeNameLabel, m.node("a")), HaveKeyWithValue(v1.MigrationTargetNodeNameLabel, m.node("b"))))
		Expect(vmi.Status.ActivePods).To(HaveLen(2))
		Expect(vmi.Status.MigrationTransport).To(BeEmpty())

		a := &agents{vmi: vmi}
		a.prepare()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationTargetReady))
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationRunning))
		Expect(IsDeleted(source)).To(BeFalse())
		a.complete()
		a.act()
		m.reconcileAll(vmim)

		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationSucceeded))
		Expect(phasesOf(vmim)).To(Equal([]v1.VirtualMachineInstanceMigrationPhase{
			v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled, v1.MigrationPreparingTarget,
			v1.MigrationTargetReady, v1.MigrationRunning, v1.MigrationSucceeded,
		}))
		Expect(vmim.Finalizers).To(BeEmpty())
		Expect(vmim.Status.MigrationState.Completed).To(BeTrue())
		Expect(m.recorded.Take()).To(ConsistOf(
			"Normal SuccessfulCreate: Created migration target pod "+target.Name,
			"Normal SuccessfulHandOver: Migration target pod is ready for preparation by virt-handler.",
			"Normal SuccessfulMigration: Source node reported migration succeeded",
		))
		Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node("b")))
		Expect(vmi.Status.Phase).To(Equal(v1.Running))
		Expect(vmi.Status.MigrationTransport).To(Equal(v1.MigrationTransportUnix), "from the annotation of its new Pod")
		Expect(vmi.Labels).To(
			And(HaveKeyWithValue(v1.NodeNameLabel, m.node("b")), Not(HaveKey(v1.MigrationTargetNodeNameLabel))))
		Expect(vmi.Annotations).NotTo(HaveKey(v1.EvictionSourceAnnotation), "the eviction is finished")
		Expect(IsDeleted(source)).To(BeTrue())
		Expect(IsDeleted(target)).To(BeFalse())

		// The VMI does not end with the source's Pod. It ends with the target's.
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", outcomeMigrated))
		m.reconcileAll(vmim)
		m.remove(source)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(vmi.Status.ActivePods).To(HaveLen(1))
		m.setPodStatus(target, "", builder.MakePodStatus().Terminated(0, "Completed", outcomeShutdown))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
		Expect(vmi.Status.Reason).To(Equal("GuestShutdown"))
	})

	It("migrates a guest to another node and back, one migration at a time", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		hosts := []string{"b", "a", "b"}
		for i, host := range hosts {
			left := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: podspec.OwnPodName(vmi)}}
			vmim, a := m.copying(vmi, builder.MakeMigration("go-"+string(rune('0'+i)), "vm"), host)
			a.complete()
			a.act()
			m.reconcileAll(vmim)
			Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationSucceeded))
			Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node(host)))

			// The next one waits until the source's Pod of this one is gone.
			next := m.request(builder.MakeMigration("early-"+string(rune('0'+i)), "vm"))
			m.reconcileAll(vmim, next)
			Expect(ExpectExists(next).Status.Phase).To(Equal(v1.MigrationPending))
			ExpectGone(m.target(vmi, next))
			Expect(K8sClient.Delete(ctx, next)).To(Succeed())
			m.reconcileAll(next)
			ExpectGone(next)
			m.remove(left)
			m.reconcileAll(vmim)
		}
	})

	It("keeps the guest on the source when the transfer fails", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.fail()
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.recorded.Take()).To(
			ContainElement("Warning FailedMigration: source node reported migration failed: the copy ended early"))
		Expect(IsDeleted(m.target(vmi, vmim))).To(BeTrue())
		Expect(IsDeleted(PodOf(vmi))).To(BeFalse())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(vmi.Status.NodeName).To(Equal(m.node("a")))
		Expect(vmi.Labels).NotTo(HaveKey(v1.MigrationTargetNodeNameLabel))
	})

	It("requests an abort when the target's Pod is gone", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.targetDead = true
		m.remove(m.target(vmi, vmim))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState.AbortRequested).To(BeTrue())
		// The migration fails only when the source's agent reports it: the guest may already run on the target.
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationRunning))
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
	})

	It("does not delete the target's Pod with a cache in which the source's Pod is gone and the source still owns the guest", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		behind := ExpectExists(vmi).DeepCopy()
		a.complete()
		a.act()
		m.remove(PodOf(vmi))
		m.vmis.Writes.Stale = behind
		Expect(m.vmis.Step(vmi)).To(HaveField("Requeue", BeTrue()))
		Expect(IsDeleted(m.target(vmi, vmim))).To(BeFalse())
		m.vmis.Writes.Stale = nil
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(IsDeleted(m.target(vmi, vmim))).To(BeFalse())
	})

	It("succeeds when the target's agent takes ownership because the source's agent cannot transfer it", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.complete()
		a.sourceDead = true
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", outcomeMigrated))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node("b")))
		a.act()
		Expect(a.target).To(BeEquivalentTo(3), "the target's guest does not run")
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationSucceeded))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
	})

	It("fails the VMI whose guest crashed during the migration only after the target's Pod is gone", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.sourceDead = true
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(1, "Error", `{"reason":"GuestCrashed","message":"QEMU ended"}`))
		m.reconcileAll(vmim)
		target := m.target(vmi, vmim)
		Expect(IsDeleted(target)).To(BeTrue())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		m.remove(target)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal("GuestCrashed"))
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
	})

	It("fails the VMI as LostInMigration when the guest was transferred and never ran on the target", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.complete()
		a.sourceDead, a.targetDead = true, true
		m.remove(m.target(vmi, vmim))
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", outcomeMigrated))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal("LostInMigration"))
	})

	// postCopied returns a migration that was switched to post-copy, after the transfer of ownership.
	postCopied := func() (*migrations, *v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigration) {
		GinkgoHelper()
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.write("virt-handler of the migration's source",
			func(s *v1.VirtualMachineInstanceMigrationState) { s.Mode = v1.MigrationPostCopy })
		a.complete()
		a.act()
		m.reconcileAll(vmim)
		return m, vmi, vmim
	}

	It("keeps the source's Pod, which still serves memory, after a switch to post-copy", func() {
		m, vmi, vmim := postCopied()
		Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node("b")))
		Expect(IsDeleted(PodOf(vmi))).To(BeFalse())
		// It is deleted when the guest does not need it any more.
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		m.reconcileAll(vmim)
		Expect(IsDeleted(PodOf(vmi))).To(BeTrue())
	})

	It("deletes the source's Pod of a post-copy when it has ended", func() {
		m, vmi, vmim := postCopied()
		Expect(IsDeleted(PodOf(vmi))).To(BeFalse())
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", outcomeMigrated))
		m.reconcileAll(vmim)
		Expect(IsDeleted(PodOf(vmi))).To(BeTrue())
		Expect(IsDeleted(m.target(vmi, vmim))).To(BeFalse())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
	})

	It("aborts the migration and shuts the guest down on the source when the VMI is deleted", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState.AbortRequested).To(BeTrue())
		Expect(IsDeleted(PodOf(vmi))).To(BeTrue())
		a.act()
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", outcomeShutdown))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Finalizers).NotTo(BeEmpty())
		m.remove(m.target(vmi, vmim))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
		Expect(vmi.Finalizers).NotTo(BeEmpty(), "the source's Pod still exists")
		m.remove(PodOf(vmi))
		m.clock.SetTime(m.clock.Now().Add(ShownFor))
		m.reconcileAll(vmim)
		ExpectGone(vmi)
		m.Step(vmim)
		ExpectGone(vmim)
	})

	It("fails with a field that is not implemented, with the field in the message", func() {
		m := newMigrations()
		m.running("a", "vm")
		vmim := builder.MakeMigration("go", "vm").Obj()
		vmim.Namespace, vmim.Spec.Receive = m.ns, &v1.VirtualMachineInstanceMigrationTarget{MigrationID: "x"}
		ExpectCreated(vmim)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.recorded.Take()).To(
			ConsistOf(And(HavePrefix("Warning FailedMigration: spec.receive: "), ContainSubstring("not implemented yet"))))
	})

	DescribeTable("fails when the target's launcher ends before the agents prepare the migration",
		func(status *builder.PodStatus, deletion OmegaMatcher) {
			m := newMigrations()
			vmi := m.running("a", "vm")
			vmim := m.request(builder.MakeMigration("go", "vm"))
			m.reconcileAll(vmim)
			target := ExpectExists(m.target(vmi, vmim))
			m.setPodStatus(target, "b", status)
			m.reconcileAll(vmim)
			Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
			Expect(ExpectExists(target).DeletionTimestamp).To(deletion)
		},
		Entry("and deletes its Pod while another container runs in it", builder.MakePodStatus().LauncherTerminated(137), Not(BeNil())),
		Entry("and keeps its Pod, with its logs, when all containers have ended", builder.MakePodStatus().Terminated(1, "Error", ""), BeNil()))

	It("is deleted when its VMI is gone", func() {
		m := newMigrations()
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.Step(vmim)
		ExpectGone(vmim)
	})

	It("deletes the target's Pod of a migration whose finalizers were removed by force", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		Expect(K8sClient.Delete(ctx, vmim)).To(Succeed())
		vmim.Finalizers = nil
		Expect(K8sClient.Patch(ctx, vmim, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		m.Step(vmim)
		ExpectGone(target)
	})

	It("neither uses nor deletes a Pod of its target's name that it does not control", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		m.remove(target)
		theirs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: target.Name, Labels: target.Labels},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "compute", Image: "theirs"}},
			}}
		ExpectCreated(theirs)
		m.setPodStatus(theirs, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(ExpectExists(vmi).Status.MigrationState).To(BeNil())
		Expect(ExpectExists(theirs).DeletionTimestamp).To(BeNil())
	})
})
