// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/reconciler"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

var _ = Describe("A VirtualMachineInstanceMigration", func() {
	It("moves a guest to another node, and the VMI follows", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		source := podOf(vmi)
		// Its launcher's version did not say how its guests migrate.
		delete(ExpectExists(source).Annotations, v1.MigrationTransportUnixAnnotation)
		Expect(k8sClient.Update(ctx, source)).To(Succeed())
		vmi.Status.MigrationTransport = ""
		ExpectStatus(vmi)
		vmim := m.request(builder.MakeMigration("go", "vm").NodeSelector("rack", "7"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationScheduling))
		Expect(vmim.Finalizers).To(ConsistOf(v1.VirtualMachineInstanceMigrationFinalizer))
		Expect(vmim.Labels).To(HaveKeyWithValue(v1.MigrationSelectorLabel, "vm"))
		target := ExpectExists(m.target(vmi, vmim))
		Expect(target.Labels).To(HaveKeyWithValue(v1.MigrationJobLabel, string(vmim.UID)))
		Expect(target.Annotations).To(And(HaveKeyWithValue(v1.MigrationJobNameAnnotation, "go"), HaveKeyWithValue(v1.MigrationTransportUnixAnnotation, "true")))
		Expect(target.Spec.NodeSelector).To(And(HaveKeyWithValue("rack", "7"),
			HaveKeyWithValue(v1.SupportedHostModelMigrationCPU+"Skylake", "true")))

		m.play(target, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		state := ExpectExists(vmi).Status.MigrationState
		Expect(state.MigrationUID).To(Equal(vmim.UID))
		Expect([]string{state.SourceNode, state.SourcePod, state.TargetNode, state.TargetPod}).
			To(Equal([]string{m.node("a"), source.Name, m.node("b"), target.Name}))
		Expect(*state.VMIMConfigurationOptions.CompletionTimeoutPerGiB).To(BeEquivalentTo(150))
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.EvictionSourceAnnotation, "descheduler")
		Expect(k8sClient.Update(ctx, vmi)).To(Succeed())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Annotations).To(HaveKey(v1.EvictionSourceAnnotation))
		Expect(vmi.Labels).To(And(HaveKeyWithValue(v1.NodeNameLabel, m.node("a")), HaveKeyWithValue(v1.MigrationTargetNodeNameLabel, m.node("b"))))
		Expect(vmi.Status.ActivePods).To(HaveLen(2))
		Expect(vmi.Status.MigrationTransport).To(BeEmpty())

		a := &agents{vmi: vmi}
		a.prepare()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationTargetReady))
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationRunning))
		Expect(deleted(source)).To(BeFalse())
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
		Expect(m.told.take()).To(ConsistOf(
			"Normal SuccessfulCreate: Created migration target pod "+target.Name,
			"Normal SuccessfulHandOver: Migration target pod is ready for preparation by virt-handler.",
			"Normal SuccessfulMigration: Source node reported migration succeeded",
		))
		Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node("b")))
		Expect(vmi.Status.Phase).To(Equal(v1.Running))
		Expect(vmi.Status.MigrationTransport).To(Equal(v1.MigrationTransportUnix), "as its new Pod says")
		Expect(vmi.Labels).To(And(HaveKeyWithValue(v1.NodeNameLabel, m.node("b")), Not(HaveKey(v1.MigrationTargetNodeNameLabel))))
		Expect(vmi.Annotations).NotTo(HaveKey(v1.EvictionSourceAnnotation), "nobody evicts it any more")
		Expect(deleted(source)).To(BeTrue())
		Expect(deleted(target)).To(BeFalse())

		// The Pod that the guest left ends, and is not the VMI's end. The guest's new Pod is.
		m.world.play(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", lastWordMigrated))
		m.reconcileAll(vmim)
		m.remove(source)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(vmi.Status.ActivePods).To(HaveLen(1))
		m.play(target, "", builder.MakePodStatus().Terminated(0, "Completed", lastWordShutdown))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
		Expect(vmi.Status.Reason).To(Equal("GuestShutdown"))
	})

	It("moves a guest there and back again", func() {
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

			// The next one waits until nothing is left of this one.
			next := m.request(builder.MakeMigration("early-"+string(rune('0'+i)), "vm"))
			m.reconcileAll(vmim, next)
			Expect(ExpectExists(next).Status.Phase).To(Equal(v1.MigrationPending))
			ExpectGone(m.target(vmi, next))
			Expect(k8sClient.Delete(ctx, next)).To(Succeed())
			m.reconcileAll(next)
			ExpectGone(next)
			m.remove(left)
			m.reconcileAll(vmim)
		}
	})

	It("keeps the guest where it is when the copy fails", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.fail()
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.told.take()).To(ContainElement("Warning FailedMigration: source node reported migration failed: the copy ended early"))
		Expect(deleted(m.target(vmi, vmim))).To(BeTrue())
		Expect(deleted(podOf(vmi))).To(BeFalse())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(vmi.Status.NodeName).To(Equal(m.node("a")))
		Expect(vmi.Labels).NotTo(HaveKey(v1.MigrationTargetNodeNameLabel))
	})

	It("asks the agents to abort when the target's Pod is lost", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.targetDead = true
		m.remove(m.target(vmi, vmim))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState.AbortRequested).To(BeTrue())
		// Nobody says that it failed before the source does: the guest may have left.
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationRunning))
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
	})

	It("leaves the guest's Pod alone when the cache has missed that the guest came, and not that its old Pod is gone", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		behind := ExpectExists(vmi).DeepCopy()
		a.complete()
		a.act()
		m.remove(podOf(vmi))
		m.writes.Stale = behind
		Expect(m.reconcile(vmi)).To(HaveField("RequeueAfter", Equal(reconciler.ConflictRetry)))
		Expect(deleted(m.target(vmi, vmim))).To(BeFalse())
		m.writes.Stale = nil
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(deleted(m.target(vmi, vmim))).To(BeFalse())
	})

	It("records the new owner for a source that could not", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.complete()
		a.sourceDead = true
		m.world.play(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", lastWordMigrated))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node("b")))
		a.act()
		Expect(a.target).To(BeEquivalentTo(3), "the target's guest does not run")
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationSucceeded))
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
	})

	It("ends the VMI of a guest that died on the way, but only once the target's Pod has ended", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.sourceDead = true
		m.world.play(vmi, "", builder.MakePodStatus().Terminated(1, "Error", `{"reason":"GuestCrashed","message":"QEMU ended"}`))
		m.reconcileAll(vmim)
		target := m.target(vmi, vmim)
		Expect(deleted(target)).To(BeTrue())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		m.remove(target)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal("GuestCrashed"))
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
	})

	It("says so when a guest had left its node and never ran on the other one", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.complete()
		a.sourceDead, a.targetDead = true, true
		m.remove(m.target(vmi, vmim))
		m.world.play(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", lastWordMigrated))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		Expect(vmi.Status.Reason).To(Equal("LostInMigration"))
	})

	// postCopied is a migration that was switched to a post-copy, and whose guest is the target's.
	postCopied := func() (*migrations, *v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigration) {
		GinkgoHelper()
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.write("virt-handler of the migration's source", func(s *v1.VirtualMachineInstanceMigrationState) { s.Mode = v1.MigrationPostCopy })
		a.complete()
		a.act()
		m.reconcileAll(vmim)
		return m, vmi, vmim
	}

	It("leaves a Pod alone that still serves memory after a switch to post-copy", func() {
		m, vmi, vmim := postCopied()
		Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node("b")))
		Expect(deleted(podOf(vmi))).To(BeFalse())
		// It goes when the guest does not need it any more.
		Expect(k8sClient.Delete(ctx, vmi)).To(Succeed())
		m.reconcileAll(vmim)
		Expect(deleted(podOf(vmi))).To(BeTrue())
	})

	It("removes that Pod when it has ended", func() {
		m, vmi, vmim := postCopied()
		Expect(deleted(podOf(vmi))).To(BeFalse())
		m.world.play(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", lastWordMigrated))
		m.reconcileAll(vmim)
		Expect(deleted(podOf(vmi))).To(BeTrue())
		Expect(deleted(m.target(vmi, vmim))).To(BeFalse())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
	})

	It("stops a guest that is deleted on its way where it is", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		Expect(k8sClient.Delete(ctx, vmi)).To(Succeed())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState.AbortRequested).To(BeTrue())
		Expect(deleted(podOf(vmi))).To(BeTrue())
		a.act()
		m.world.play(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", lastWordShutdown))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Finalizers).NotTo(BeEmpty())
		m.remove(m.target(vmi, vmim))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
		Expect(vmi.Finalizers).NotTo(BeEmpty(), "the Pod that its guest was in is still there")
		m.remove(podOf(vmi))
		m.reconcileAll(vmim)
		ExpectGone(vmi)
		m.reconcileOnce(vmim)
		ExpectGone(vmim)
	})

	It("fails one that asks for what is not implemented, by its name", func() {
		m := newMigrations()
		m.running("a", "vm")
		vmim := builder.MakeMigration("go", "vm").Obj()
		vmim.Namespace, vmim.Spec.Receive = m.ns, &v1.VirtualMachineInstanceMigrationTarget{MigrationID: "x"}
		ExpectCreated(vmim)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.told.take()).To(ConsistOf(And(HavePrefix("Warning FailedMigration: spec.receive: "), ContainSubstring("not implemented yet"))))
	})

	It("deletes a migration whose VMI is gone", func() {
		m := newMigrations()
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileOnce(vmim)
		ExpectGone(vmim)
	})

	It("deletes the Pod of a migration that somebody took away by force", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		Expect(k8sClient.Delete(ctx, vmim)).To(Succeed())
		vmim.Finalizers = nil
		Expect(k8sClient.Patch(ctx, vmim, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		m.reconcileOnce(vmim)
		ExpectGone(target)
	})

	It("takes no Pod for its target that is somebody else's, and does not delete it", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		m.remove(target)
		theirs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: target.Name, Labels: target.Labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "compute", Image: "theirs"}},
		}}
		ExpectCreated(theirs)
		m.play(theirs, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(ExpectExists(vmi).Status.MigrationState).To(BeNil())
		Expect(ExpectExists(theirs).DeletionTimestamp).To(BeNil())
	})
})
