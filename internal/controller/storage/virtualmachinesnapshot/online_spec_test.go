// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot_test

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

	"github.com/vireo-project/vireo/api/csi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

func metaOf(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

const indicatesAgent = "; GuestAgent; Online"

var _ = Describe("VirtualMachineSnapshot of a running VM", func() {
	var w *snapshots
	var vm *v1.VirtualMachine
	BeforeEach(func() {
		w = newSnapshots()
		vm = w.vm()
	})

	// record writes the record of a freeze, as the agent does.
	record := func(vmi *v1.VirtualMachineInstance, stage v1.SnapshotFreezeStage, change func(*v1.SnapshotFreezeRecord)) {
		GinkgoHelper()
		ReportAsAgent(vmi, func(status *v1.VirtualMachineInstanceStatus) {
			r := &v1.SnapshotFreezeRecord{ID: status.SnapshotFreeze.ID, Deadline: status.SnapshotFreeze.Deadline, Stage: stage}
			r.FrozenAt = ptr.To(metav1.NewTime(w.clock.Now()).Rfc3339Copy())
			change(r)
			status.SnapshotFreezeRecord = r
		})
	}
	asItIs := func(*v1.SnapshotFreezeRecord) {}
	intent := func(vmi *v1.VirtualMachineInstance) *v1.SnapshotFreeze {
		return ExpectExists(vmi).Status.SnapshotFreeze
	}
	begin := func(vmi *v1.VirtualMachineInstance) *vmSnapshot {
		GinkgoHelper()
		of := w.request("snap")
		w.lock(of)
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi)).To(HaveField("ID", string(of.UID)))
		ExpectGone(VolumeSnapshotOf(of, "root"))
		w.events.Take()
		return of
	}
	thawed := func(kept bool) func(*v1.SnapshotFreezeRecord) {
		return func(r *v1.SnapshotFreezeRecord) {
			r.Kept, r.ThawedAt = kept, ptr.To(metav1.NewTime(r.FrozenAt.Add(2*time.Second)))
		}
	}

	It("is taken while the guest is frozen, and waits for the agent's word that it was kept", func() {
		vmi := w.guest(vm, withAgent)
		of := begin(vmi)
		w.contents.ExpectSteady(ContentOf(of)) // The guest is not frozen yet.
		record(vmi, v1.SnapshotFreezeFrozen, asItIs)
		w.take(of)
		w.contents.ExpectSteady(ContentOf(of))
		w.report(of, "root", true)
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi).End).To(Equal(v1.SnapshotFreezeRelease))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(snapshotTakes + indicatesAgent))
		w.contents.ExpectSteady(ContentOf(of))

		record(vmi, v1.SnapshotFreezeThawed, thawed(true))
		// The content stores how the freeze ended before the intent is removed: other freezes of the guest wait for that, and
		// their records replace this one.
		w.contents.ExpectOrder(ContentOf(of), patchContent, patchVMIStatus, patchContentStatus)
		Expect(intent(vmi)).To(BeNil())
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady + indicatesAgent))
		Expect(of.Status.SourceIndications[0].Message).To(HaveSuffix("frozen for 2s."))
		w.settleBoth(of)
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Normal SuccessfulVolumeSnapshotCreate")))
	})

	It("is the same when a backup freezes the guest before its status is written", func() {
		vmi := w.guest(vm, withAgent)
		of := begin(vmi)
		record(vmi, v1.SnapshotFreezeFrozen, asItIs)
		w.take(of)
		w.report(of, "root", true)
		w.contents.Step(ContentOf(of))
		record(vmi, v1.SnapshotFreezeThawed, thawed(true))
		w.Writes.Fail = func(request string) error {
			if request == patchContentStatus {
				return errors.New("the API server is away")
			}
			return nil
		}
		_, err := w.contents.Try(ContentOf(of))
		Expect(err).To(HaveOccurred())
		w.Writes.Fail = nil
		before := client.MergeFrom(ExpectExists(vmi).DeepCopy())
		vmi.Status.SnapshotFreeze = &v1.SnapshotFreeze{ID: "backup", Deadline: metav1.Now()}
		vmi.Status.SnapshotFreezeRecord = &v1.SnapshotFreezeRecord{ID: "backup", Deadline: metav1.Now(),
			Stage: v1.SnapshotFreezeFrozen}
		Expect(K8sClient.Status().Patch(ctx, vmi, before)).To(Succeed())
		w.settleBoth(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady + indicatesAgent))
		Expect(intent(vmi)).To(HaveField("ID", "backup"))
	})

	It("is the same when the VMI is gone before its status is written", func() {
		vmi := w.guest(vm, withAgent)
		of := begin(vmi)
		record(vmi, v1.SnapshotFreezeFrozen, asItIs)
		w.take(of)
		w.report(of, "root", true)
		w.contents.Step(ContentOf(of))
		record(vmi, v1.SnapshotFreezeThawed, thawed(true))
		w.contents.Step(ContentOf(of))
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		w.settleBoth(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady + indicatesAgent))
	})

	DescribeTable("is taken all the same, and says that it is not consistent",
		func(fault func(of *vmSnapshot, vmi *v1.VirtualMachineInstance), problem string) {
			vmi := w.guest(vm, withAgent)
			of := begin(vmi)
			fault(of, vmi)
			w.settleBoth(of)
			w.report(of, "root", true)
			w.settleBoth(of)
			Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady + indicatesAgent + "; QuiesceTimeout"))
			Expect(of.Status.SourceIndications[2].Message).To(HavePrefix(problem))
			Expect(IsLockedForSnapshot(vm)).To(BeFalse())
		},
		Entry("the freeze failed", func(_ *vmSnapshot, vmi *v1.VirtualMachineInstance) {
			record(vmi, v1.SnapshotFreezeFailed, func(r *v1.SnapshotFreezeRecord) { r.Problem = "The guest refused" })
		}, "The guest refused. "),
		Entry("the guest thawed by itself", func(of *vmSnapshot, vmi *v1.VirtualMachineInstance) {
			record(vmi, v1.SnapshotFreezeFrozen, asItIs)
			w.take(of)
			record(vmi, v1.SnapshotFreezeThawed, thawed(false))
		}, "The guest's file systems were not frozen until"),
		Entry("the agent does not respond until the freeze's deadline", func(_ *vmSnapshot, vmi *v1.VirtualMachineInstance) {
			w.clock.SetTime(intent(vmi).Deadline.Time)
		}, "The guest's file systems were not frozen until"),
		Entry("the guest ends before it is frozen", func(_ *vmSnapshot, vmi *v1.VirtualMachineInstance) {
			SetVMIStatus(vmi, v1.Succeeded)
		}, "The guest ended while"),
		Entry("a VolumeSnapshot is refused while the guest is frozen", func(of *vmSnapshot, vmi *v1.VirtualMachineInstance) {
			record(vmi, v1.SnapshotFreezeFrozen, asItIs)
			w.Writes.Fail = func(request string) error {
				if request == createVolumeSnap {
					return apierrors.NewBadRequest("denied by a webhook")
				}
				return nil
			}
			w.contents.Step(ContentOf(of))
			Expect(intent(vmi).End).To(Equal(v1.SnapshotFreezeCancel))
			w.Writes.Fail = nil
			record(vmi, v1.SnapshotFreezeThawed, thawed(false))
		}, "The guest's file systems were not frozen until"),
		Entry("the guest is replaced after the snapshot was requested", func(of *vmSnapshot, vmi *v1.VirtualMachineInstance) {
			record(vmi, v1.SnapshotFreezeFrozen, asItIs)
			w.take(of)
			Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
			w.guest(vm, withAgent)
		}, "The guest's file systems were not frozen until"),
	)

	// refuse refuses VolumeSnapshots, as a quota does.
	refuse := func(request string) error {
		if request == createVolumeSnap {
			return apierrors.NewForbidden(csi.GroupVersion.WithResource("volumesnapshots").GroupResource(), "x",
				errors.New("exceeded quota: few"))
		}
		return nil
	}
	const inError = "InProgress; Progressing=False In error state; Ready=False Not ready" + indicatesAgent

	It("is not frozen for VolumeSnapshots that the API server refuses, and says why", func() {
		vmi := w.guest(vm, withAgent)
		of := w.request("snap")
		w.lock(of)
		w.Writes.Fail = refuse
		Expect(w.contents.Step(ContentOf(of)).RequeueAfter).To(Equal(5 * time.Second))
		w.contents.ExpectBudget(ContentOf(of), createVolumeSnap) // The same refusal is written once.
		Expect(intent(vmi)).To(BeNil())
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(inError))
		Expect(of.Status.Error.Message).To(HaveValue(HaveSuffix("is forbidden: exceeded quota: few")))
		w.Writes.Fail = nil
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi)).To(HaveField("ID", string(of.UID)))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(snapshotTakes + indicatesAgent))
		ExpectGone(VolumeSnapshotOf(of, "root"))
	})

	// refused begins a freeze, and has the VolumeSnapshots refused while the guest is frozen.
	refused := func(vmi *v1.VirtualMachineInstance) *vmSnapshot {
		GinkgoHelper()
		of := begin(vmi)
		record(vmi, v1.SnapshotFreezeFrozen, asItIs)
		w.Writes.Fail = refuse
		Expect(w.contents.Step(ContentOf(of)).RequeueAfter).To(Equal(5 * time.Second))
		Expect(intent(vmi).End).To(Equal(v1.SnapshotFreezeCancel))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(inError))
		Expect(of.Status.Error.Message).To(HaveValue(HaveSuffix("is forbidden: exceeded quota: few")))
		return of
	}

	It("fails with the reason if the API server refuses its VolumeSnapshots for as long as it may take", func() {
		of := refused(w.guest(vm, withAgent))
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.settleBoth(of)
		Expect(DescribeSnapshot(of)).To(Equal("Failed; Progressing=False In error state; Ready=False Not ready; " +
			"Failure=True snapshot deadline exceeded" + indicatesAgent))
		Expect(of.Status.Error.Message).To(HaveValue(HaveSuffix("is forbidden: exceeded quota: few")))
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
	})

	It("is thawed at once though the first attempt to cancel the freeze fails", func() {
		vmi := w.guest(vm, withAgent)
		of := begin(vmi)
		record(vmi, v1.SnapshotFreezeFrozen, asItIs)
		w.Writes.Fail = func(request string) error {
			if request == patchVMIStatus {
				return ErrInjected
			}
			return refuse(request)
		}
		_, err := w.contents.Try(ContentOf(of))
		Expect(err).To(MatchError(ErrInjected))
		w.Writes.Fail = refuse
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi).End).To(Equal(v1.SnapshotFreezeCancel))
	})

	DescribeTable("is not frozen",
		func(indications string, changes ...func(*v1.VirtualMachineInstanceStatus)) {
			vmi := w.guest(vm, changes...)
			of := w.request("snap")
			w.settleBoth(of)
			w.report(of, "root", true)
			w.settleBoth(of)
			Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady + indications))
			Expect(intent(vmi)).To(BeNil())
		},
		Entry("without a guest agent", "; NoGuestAgent; Online"),
		Entry("while it is paused", "; Online; Paused", withAgent,
			WithCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, "PausedByUser", "")),
	)

	DescribeTable("thaws the guest before the VM is unlocked",
		func(end func(of *vmSnapshot)) {
			vmi := w.guest(vm, withAgent)
			of := begin(vmi)
			record(vmi, v1.SnapshotFreezeFrozen, asItIs)
			w.take(of)
			end(of)
			w.Step(of)
			Expect(IsLockedForSnapshot(vm)).To(BeTrue())
			w.contents.Step(ContentOf(of))
			Expect(intent(vmi).End).To(Equal(v1.SnapshotFreezeCancel))
			w.settleBoth(of)
			ExpectGone(ContentOf(of))
			Expect(IsLockedForSnapshot(vm)).To(BeFalse())
		},
		Entry("when it is deleted", func(of *vmSnapshot) { Expect(K8sClient.Delete(ctx, of)).To(Succeed()) }),
		Entry("when it fails", func(*vmSnapshot) { w.clock.SetTime(w.clock.Now().Add(time.Hour)) }),
	)

	It("is one of a stopped VM if the VMI of its name belongs to another owner", func() {
		vmi := w.guest(builder.MakeVM("vm").Namespace(w.ns).UID("another").Obj(), withAgent)
		of := w.request("snap")
		w.settleBoth(of)
		w.report(of, "root", true)
		w.settleBoth(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady))
		Expect(intent(vmi)).To(BeNil())
	})

	It("does not freeze the guest of a VM that is not locked for it: users may create contents of any VM", func() {
		vmi := w.guest(vm, withAgent)
		of := w.request("snap")
		w.lock(of)
		ExpectExists(vm).Status.SnapshotInProgress = ptr.To("other")
		Expect(K8sClient.Status().Update(ctx, vm)).To(Succeed())
		w.take(of)
		Expect(intent(vmi)).To(BeNil())
	})

	It("freezes the guest for minutes at most, because migrations wait", func() {
		vmi := w.guest(vm, withAgent)
		of := w.request("snap", func(s *vmSnapshot) { s.Spec.FailureDeadline = &metav1.Duration{Duration: 24 * time.Hour} })
		w.lock(of)
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi).Deadline.Sub(w.clock.Now())).To(BeNumerically("<=", 5*time.Minute))
	})

	Context("while a migration waits", func() {
		var vmi *v1.VirtualMachineInstance
		var of *vmSnapshot
		var waits *v1.VirtualMachineInstanceMigration
		BeforeEach(func() {
			vmi = w.guest(vm, withAgent)
			waits = builder.MakeMigration("go", "vm").Namespace(w.ns).Obj()
			ExpectCreated(waits)
			DeferCleanup(func() { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, waits))).To(Succeed()) })
			of = w.request("snap")
			w.lock(of)
			w.clock.SetTime(ExpectExists(ContentOf(of)).CreationTimestamp.Time)
			Expect(w.contents.Step(ContentOf(of)).RequeueAfter).To(Equal(30 * time.Second))
			Expect(intent(vmi)).To(BeNil())
		})
		freezes := func() {
			GinkgoHelper()
			w.contents.Step(ContentOf(of))
			Expect(intent(vmi)).To(HaveField("ID", string(of.UID)))
		}

		It("freezes the guest after half a minute", func() {
			w.clock.SetTime(w.clock.Now().Add(20 * time.Second))
			Expect(w.contents.ExpectSteady(ContentOf(of)).RequeueAfter).To(Equal(10 * time.Second))
			w.clock.SetTime(w.clock.Now().Add(10 * time.Second))
			freezes()
		})

		It("freezes the guest when it has waited long enough for the migration", func() {
			ExpectExists(vmi).Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: waits.UID}
			Expect(K8sClient.Status().Update(ctx, vmi)).To(Succeed())
			freezes()
		})

		It("freezes the guest when the migration has failed", func() {
			ExpectExists(waits).Status.Phase = v1.MigrationFailed
			Expect(K8sClient.Status().Update(ctx, waits)).To(Succeed())
			freezes()
		})

		It("is abandoned without a freeze when it is deleted", func() {
			Expect(K8sClient.Delete(ctx, of)).To(Succeed())
			w.settleBoth(of)
			ExpectGone(of)
			Expect(intent(vmi)).To(BeNil())
			Expect(IsLockedForSnapshot(vm)).To(BeFalse())
		})
	})

	It("gives way for a quarter of its time at most", func() {
		vmi := w.guest(vm, withAgent)
		waits := builder.MakeMigration("go", "vm").Namespace(w.ns).Obj()
		ExpectCreated(waits)
		DeferCleanup(func() { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, waits))).To(Succeed()) })
		of := w.request("snap", func(s *vmSnapshot) { s.Spec.FailureDeadline = &metav1.Duration{Duration: time.Minute} })
		w.clock.SetTime(of.CreationTimestamp.Time)
		w.lock(of)
		w.clock.SetTime(ExpectExists(ContentOf(of)).CreationTimestamp.Time)
		Expect(w.contents.Step(ContentOf(of)).RequeueAfter).To(BeNumerically("~", 15*time.Second, time.Second))
		Expect(intent(vmi)).To(BeNil())
	})

	It("waits until the VM has adopted its VMI, whose launcher uses the disks", func() {
		vmi := builder.MakeVMI(vm.Name).Namespace(w.ns).Obj()
		ExpectCreated(vmi, PodWithClaim(w.ns, "launcher", "root"))
		SetVMIStatus(vmi, v1.Running, withAgent)
		of := w.request("snap")
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(ContainSubstring("source is offline but 1 pods using PVCs [root]"))
		ExpectExists(vmi).OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm,
			v1.VirtualMachineGroupVersionKind)}
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		w.lock(of)
		Expect(DescribeSnapshot(of)).To(Equal(snapshotTakes + indicatesAgent))
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi)).To(HaveField("ID", string(of.UID)))
	})

	It("releases a guest whose VMI has lost its owner since it was frozen", func() {
		vmi := w.guest(vm, withAgent)
		of := begin(vmi)
		record(vmi, v1.SnapshotFreezeFrozen, asItIs)
		w.take(of)
		ExpectExists(vmi).OwnerReferences = nil
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		w.report(of, "root", true)
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi).End).To(Equal(v1.SnapshotFreezeRelease))
	})

	It("does not write an intent to a VMI that has changed", func() {
		vmi := w.guest(vm, withAgent)
		of := w.request("snap")
		w.lock(of)
		w.Writes.Fail = func(request string) error {
			if request == patchVMIStatus {
				SetVMIStatus(vmi, v1.Running, WithCondition("Changed", corev1.ConditionTrue, "", ""))
			}
			return nil
		}
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi)).To(BeNil())
		Expect(vmi.Status.Conditions).To(ContainElement(HaveField("Type", BeEquivalentTo("Changed"))))
		By("but to the one that it reads next")
		w.Writes.Fail = nil
		w.contents.Step(ContentOf(of))
		Expect(intent(vmi)).To(HaveField("ID", string(of.UID)))
	})

	It("stores the VM that the guest was started with", func() {
		// It stores the spec in a revision, which package virtualmachine also reads for the snapshot.
		vms := &virtualmachine.Reconciler{
			Client: NewWrites(), APIReader: AsController, Recorder: &RecordedEvents{}, Clock: w.clock,
			Config: FixedConfig{Config: clusterconfig.Default()}, DataVolumes: DataVolumes{}, VolumeSnapshots: VolumeSnapshots{},
		}
		ExpectExists(vm).Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
		vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Cores: 1}
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		_, err := Reconcile(vms, vm)
		Expect(err).NotTo(HaveOccurred())
		ExpectExists(vm).Spec.Template.Spec.Domain.CPU.Cores = 4
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		of := w.request("snap")
		w.settleBoth(of)
		stored := ExpectExists(ContentOf(of)).Spec.Source.VirtualMachine
		Expect(stored.Spec.Template.Spec.Domain.CPU.Cores).To(BeEquivalentTo(1))
		Expect(stored.Annotations).To(HaveKeyWithValue("kubevirt.io/firmware-identity", "vm-uid"))
	})
})
