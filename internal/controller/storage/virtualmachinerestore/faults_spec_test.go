// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const createVM = "create VirtualMachine"

var _ = Describe("VirtualMachineRestore with faults", func() {
	type change = func(*snapshotv1beta1.VirtualMachineRestoreSpec)

	// run restores a VM while fail makes writes fail, and returns the writes.
	run := func(fail func(n int, request string) error, changes ...change) []string {
		GinkgoHelper()
		r := newRestores()
		var writes []string
		r.Writes.Fail = func(request string) error {
			writes = append(writes, request)
			return fail(len(writes)-1, request)
		}
		of := r.Restore(changes...)
		r.finish(of)
		r.Writes.Fail = nil
		r.events.Take()
		r.expectQuiet(of)
		Expect(r.LockedBy()).To(BeEmpty())
		for name, claim := range r.Claims() {
			Expect(claim.DeletionTimestamp).To(BeNil(), name)
		}
		return writes
	}

	DescribeTable("completes though any one write fails", func(how change) {
		clean := run(func(int, string) error { return nil }, how)
		Expect(len(clean)).To(BeNumerically(">", 8))
		for k := range clean {
			By(clean[k])
			run(func(n int, _ string) error {
				if n == k {
					return ErrInjected
				}
				return nil
			}, how)
		}
	},
		Entry("in place", inPlace),
		Entry("to a new VM", toNewVM),
	)

	It("reports once that the VM cannot be written, keeps it locked, and goes on when it can", func() {
		r := newRestores()
		refused := apierrors.NewForbidden(v1.GroupVersion.WithResource("virtualmachines").GroupResource(), "vm",
			errors.New("denied by team.example"))
		requests := 0
		r.Writes.Fail = func(request string) error {
			if request == patchVM {
				if requests++; requests > 1 { // The first one is the check.
					return refused
				}
			}
			return nil
		}
		of := r.Restore()
		var events []string
		r.until(of, func() bool {
			events = append(events, r.events.Take()...)
			return len(events) > 0
		})
		Expect(events).To(ConsistOf(And(HavePrefix(encountered), ContainSubstring("denied by team.example"))))
		Expect(conditionsOf(of)).To(
			HaveExactElements(ContainSubstring("denied by team.example"), ContainSubstring("denied by team.example")))
		Expect(r.LockedBy()).To(Equal("back"))
		for range 3 {
			r.FakeClock.SetTime(r.FakeClock.Now().Add(15 * time.Second))
			result := r.ExpectBudget(of, patchVM) // The same refusal is written once.
			Expect(result.RequeueAfter).To(BeNumerically(">=", 15*time.Second), "the delay grows")
			Expect(r.events.Take()).To(BeEmpty())
		}
		r.Writes.Fail = nil
		r.finish(of)
	})

	// failure returns what a restore whose VM is refused reports.
	failure := func(r *restores) []any {
		text := "VirtualMachine " + r.NS + `/other cannot be created: VirtualMachine.kubevirt.io "other" is invalid: spec.template: Required value: missing`
		return []any{Equal("Progressing=False: " + text), Equal("Ready=False: " + text), Equal("Failure=True: " + text)}
	}
	invalid := apierrors.NewInvalid(v1.VirtualMachineGroupVersionKind.GroupKind(), "other",
		field.ErrorList{field.Required(field.NewPath("spec", "template"), "missing")})

	It("fails for good, before it has created anything, if its new VM is not valid", func() {
		r := newRestores()
		r.Writes.Fail = func(request string) error {
			if request == createVM {
				return invalid
			}
			return nil
		}
		of, before := r.Restore(toNewVM), r.objects()
		r.until(of, func() bool { return restore.Finished(ExpectExists(of).Status) })
		Expect(conditionsOf(of)).To(HaveExactElements(failure(r)...))
		Expect(r.events.Take()).To(
			ConsistOf(And(HavePrefix("Warning Operation failed: "), ContainSubstring("spec.template: Required value: missing"))))
		Expect(r.objects()).To(Equal(before))
		r.Writes.Fail = nil
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())
	})

	It("fails for good, before it has deleted anything, if its VM would not be valid any more", func() {
		r := newRestores()
		r.Writes.Fail = func(request string) error {
			if request == patchVM {
				return invalid
			}
			return nil
		}
		of, before := r.Restore(inPlace), r.objects()
		r.until(of, func() bool { return restore.Finished(ExpectExists(of).Status) })
		Expect(conditionsOf(of)).To(ContainElement(And(
			HavePrefix("Failure=True: VirtualMachine "+r.NS+"/vm cannot be restored: "),
			ContainSubstring("spec.template: Required value: missing"))))
		Expect(r.LockedBy()).To(BeEmpty())
		Expect(r.objects()).To(Equal(before))
		r.Writes.Fail = nil
		r.events.Take()
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())
	})

	It("fails for good if its new VM is not valid any more", func() {
		r := newRestores()
		requests := 0
		r.Writes.Fail = func(request string) error {
			if request == createVM {
				if requests++; requests > 1 {
					return invalid
				}
			}
			return nil
		}
		of := r.Restore(toNewVM)
		r.until(of, func() bool { return restore.Finished(ExpectExists(of).Status) })
		Expect(conditionsOf(of)).To(HaveExactElements(failure(r)...))
		Expect(requests).To(Equal(2), "the check, and the creation")
		Expect(r.Claims()).To(HaveLen(4))
		ExpectGone(builder.MakeVM("other").Namespace(r.NS).Obj())
		r.events.Take()
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())
	})

	It("tries again if its new VM is refused for another reason", func() {
		r := newRestores()
		requests := 0
		r.Writes.Fail = func(request string) error {
			if request == createVM {
				if requests++; requests < 3 {
					return apierrors.NewForbidden(v1.GroupVersion.WithResource("virtualmachines").GroupResource(), "other",
						errors.New("exceeded quota"))
				}
			}
			return nil
		}
		of := r.Restore(toNewVM)
		r.finish(of)
		Expect(r.events.Take()).To(ContainElement(HavePrefix(encountered)))
	})

	It("tries no more of a step once a write was refused, and deletes claims before it creates others", func() {
		r := newRestores()
		deletions := 0
		r.Writes.Fail = func(request string) error {
			if request != deleteClaim {
				return nil
			}
			// The claim of data is not deleted. That of root is, once the importer leaves its DataVolume alone.
			if deletions++; deletions == 2 {
				return nil
			}
			return ErrInjected
		}
		of, before := r.Restore(inPlace), r.objects()
		// The fourth deletion is that of data in the step that also creates root again.
		r.until(of, func() bool { return deletions == 4 })
		Expect(r.objects()).To(Equal(slices.DeleteFunc(before, func(object string) bool {
			return strings.HasPrefix(object, "PersistentVolumeClaim root-dv ")
		})))
		Expect(conditionsOf(of)).To(ContainElement(And(HavePrefix("Ready=False: "), HaveSuffix(ErrInjected.Error()))))
		r.Writes.Fail = nil
		r.finish(of)
	})

	It("restores no content that belongs to another snapshot", func() {
		r := newRestores()
		content := ExpectExists(ContentOf(r.Snapshot))
		content.Spec.VirtualMachineSnapshotName = new(string)
		Expect(K8sClient.Update(ctx, content)).To(Succeed())
		of := r.Restore()
		r.until(of, func() bool { return len(r.events.Take()) > 0 })
		Expect(conditionsOf(of)).To(ContainElement(HavePrefix("Ready=False: VMSnapshotContent of VMSnapshot ")))
	})

	It("reports missing VolumeSnapshots if their kind is not installed, and does not take one that cannot be read for missing", func() {
		r := newRestores()
		r.VolumeSnapshots = unreadable{}
		of := r.Restore()
		_, err := r.Try(of)
		Expect(err).To(MatchError(ErrInjected))
		Expect(ExpectExists(of).Finalizers).To(HaveLen(1))
		Expect(of.Status).To(BeNil())
		r.VolumeSnapshots = VolumeSnapshots{Absent: true}
		r.until(of, func() bool { return len(r.events.Take()) > 0 })
		Expect(conditionsOf(of)).To(ContainElement(HavePrefix("Ready=False: missing volumeSnapshot ")))
		Expect(r.Claims()).To(HaveLen(2))
	})

	DescribeTable("records KubeVirt's event on the restore if a DataVolume cannot be created", func(how change) {
		r := newRestores()
		r.Recorder = withObject{r.events}
		r.Writes.Fail = func(request string) error {
			if request == createDataVolume {
				return ErrInjected
			}
			return nil
		}
		of := r.Restore(how)
		var events []string
		r.until(of, func() bool {
			events = append(events, r.events.Take()...)
			return len(events) > 0
		})
		Expect(events).To(ConsistOf(
			HavePrefix(encountered+"Failed to create restore DataVolume: injected"),
			And(HavePrefix("Warning RestoreDataVolumeCreateError: Error creating restore DataVolume "),
				HaveSuffix(" [*v1beta1.VirtualMachineRestore]"))))
	},
		Entry("of an existing VM", func(*snapshotv1beta1.VirtualMachineRestoreSpec) {}),
		Entry("of a new VM", toNewVM),
	)

	It("deletes no claim while its storage class is gone, and goes on when it is there again", func() {
		r := newRestores()
		of, before := r.Restore(inPlace), r.objects()
		Expect(K8sClient.Delete(ctx, r.Class)).To(Succeed())
		var events []string
		r.until(of, func() bool {
			events = append(events, r.events.Take()...)
			return len(events) > 0
		})
		missing := "StorageClass " + r.Class.Name + " does not exist"
		Expect(events).To(ConsistOf(encountered + missing))
		Expect(conditionsOf(of)).To(HaveExactElements("Progressing=False: "+missing, "Ready=False: "+missing))
		Expect(r.objects()).To(Equal(before))
		Expect(r.expectQuiet(of).RequeueAfter).To(Equal(15 * time.Second))
		again := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: r.Class.Name}, Provisioner: r.Class.Provisioner}
		ExpectCreated(again)
		DeferCleanup(func() { Expect(K8sClient.Delete(ctx, again)).To(Succeed()) })
		r.finish(of)
	})

	// phases are where a restore may be when it is deleted.
	reached := map[string]func(r *restores, of *snapshotv1beta1.VirtualMachineRestore) bool{
		"before it was reconciled": nil,
		"with its finalizer": func(_ *restores, of *snapshotv1beta1.VirtualMachineRestore) bool {
			return ExpectExists(of).Status != nil
		},
		"with the VM locked": func(r *restores, _ *snapshotv1beta1.VirtualMachineRestore) bool { return r.LockedBy() != "" },
		"with new claims":    func(r *restores, _ *snapshotv1beta1.VirtualMachineRestore) bool { return len(r.Claims()) > 2 },
		"with the VM restored": func(r *restores, of *snapshotv1beta1.VirtualMachineRestore) bool {
			world := restore.Observed{Restore: ExpectExists(of), Target: ExpectExists(r.VM)}
			return world.Restored()
		},
		"when it is complete": func(_ *restores, of *snapshotv1beta1.VirtualMachineRestore) bool { return IsRestoreComplete(of) },
	}
	for name, done := range reached {
		It("releases the VM and leaves the claims when it is deleted "+name, func() {
			r := newRestores()
			of := r.Restore()
			if done != nil {
				r.until(of, func() bool { return done(r, of) })
			}
			before := r.objects()
			Expect(K8sClient.Delete(ctx, of)).To(Succeed())
			// The cache does not show the lock yet.
			stale := ExpectExists(r.VM.DeepCopy())
			stale.Status.RestoreInProgress = nil
			r.Writes.Stale = stale
			r.Step(of)
			ExpectGone(of)
			Expect(r.LockedBy()).To(BeEmpty())
			Expect(r.objects()).To(Equal(before))
		})
	}

	It("is released though any write of its deletion fails, and though its VM is gone", func() {
		r := newRestores()
		of := r.Restore()
		r.until(of, func() bool { return r.LockedBy() != "" })
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		for _, failing := range []string{patchVMStatus, patchRestoreStatus, patchRestore} {
			r.Writes.Fail = func(request string) error {
				if request == failing {
					return ErrInjected
				}
				return nil
			}
			_, err := r.Try(of)
			Expect(err).To(MatchError(ErrInjected), failing)
			ExpectExists(of)
		}
		r.Writes.Fail = nil
		Expect(K8sClient.Delete(ctx, r.VM)).To(Succeed())
		r.Step(of)
		ExpectGone(of)
	})

	// removed returns a restore that has locked its VM, and was removed by force since.
	removed := func(r *restores) *snapshotv1beta1.VirtualMachineRestore {
		GinkgoHelper()
		of := r.Restore()
		r.until(of, func() bool { return r.LockedBy() == "back" })
		ExpectExists(of).Finalizers = nil
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		return of
	}

	It("is not what keeps a VM locked when it was removed by force", func() {
		r := newRestores()
		of := removed(r)
		r.Writes.Fail = func(string) error { return ErrInjected }
		_, err := r.Try(of)
		Expect(err).To(MatchError(ErrInjected))
		r.Writes.Fail = nil
		before := r.objects()
		r.Step(of)
		Expect(r.LockedBy()).To(BeEmpty())
		Expect(r.objects()).To(Equal(before))
		r.expectQuiet(of)
	})

	It("is not what keeps a VM locked when it was created again for another one", func() {
		r := newRestores()
		removed(r)
		again := r.Restore(toNewVM)
		r.Step(again)
		Expect(r.LockedBy()).To(BeEmpty())
		r.finish(again)
	})

	It("keeps its VM locked though the cache does not show it", func() {
		r := newRestores()
		of := r.Restore()
		r.until(of, func() bool { return r.LockedBy() == "back" })
		r.Writes.Blind = func(_ client.ObjectKey, object client.Object) bool {
			_, isRestore := object.(*snapshotv1beta1.VirtualMachineRestore)
			return isRestore
		}
		r.expectQuiet(of)
		Expect(r.LockedBy()).To(Equal("back"))
	})

	It("does not touch the lock of another restore", func() {
		r := newRestores()
		ExpectExists(r.VM).Status.RestoreInProgress = new(string)
		*r.VM.Status.RestoreInProgress = "first"
		Expect(K8sClient.Status().Update(ctx, r.VM)).To(Succeed())
		of := r.Restore()
		var events []string
		r.until(of, func() bool {
			events = append(events, r.events.Take()...)
			return len(events) > 0
		})
		Expect(events).To(ConsistOf(encountered + "vm restore first in progress"))
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		r.Step(of)
		ExpectGone(of)
		Expect(r.LockedBy()).To(Equal("first"))
	})
})

// withObject is an event recorder that appends the type of the object to the event.
type withObject struct{ *RecordedEvents }

//nolint:revive // argument-limit: the signature is client-go's.
func (o withObject) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	o.RecordedEvents.Eventf(regarding, related, kind, reason, action, note+" [%T]",
		append(slices.Clone(args), regarding)...)
}

// unreadable are VolumeSnapshots that cannot be read.
type unreadable struct{ VolumeSnapshots }

func (unreadable) Get(context.Context, client.ObjectKey) (*csi.VolumeSnapshot, error) {
	return nil, ErrInjected
}
