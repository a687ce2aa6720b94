// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone_test

import (
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// reasonsOf returns the reasons of events of type Normal.
func reasonsOf(events []string) []string {
	var out []string
	for _, e := range events {
		if reason, _, _ := strings.Cut(e, ":"); strings.HasPrefix(reason, "Normal ") {
			out = append(out, reason)
		}
	}
	return out
}

var _ = Describe("VirtualMachineClone with faults", func() {
	// run clones a VM while fail makes writes fail, and returns the writes and the events.
	run := func(fail func(n int) error, changes ...func(*cloneSpec)) (writes, events []string) {
		GinkgoHelper()
		c := newClones()
		c.Writes.Fail = func(request string) error {
			writes = append(writes, request)
			return fail(len(writes) - 1)
		}
		of := c.clone(changes...)
		c.finishClone(of)
		c.Writes.Fail = nil
		events = c.events.Take()
		c.expectQuiet(of)
		ExpectExists(c.target())
		ExpectExists(c.Snapshot)
		return writes, events
	}

	It("succeeds, with each event, though any one write fails", func() {
		clean, events := run(func(int) error { return nil })
		Expect(clean).To(ConsistOf(createVMSnapshot, createRestoreOfClone, deleteVMSnapshot, deleteRestoreOfClone,
			patchCloneStatus, patchCloneStatus, patchCloneStatus, patchCloneStatus, patchCloneStatus),
			"the write budget: an object is created and deleted once, and a step has one status")
		for k := range clean {
			By(clean[k])
			_, got := run(func(n int) error {
				if n == k {
					return ErrInjected
				}
				return nil
			})
			Expect(reasonsOf(got)).To(Equal(reasonsOf(events)))
		}
	})

	It("reports once that its restore is refused, and goes on when it is not", func() {
		c := newClones()
		refused := apierrors.NewForbidden(snapshotv1beta1.GroupVersion.WithResource("virtualmachinerestores").GroupResource(),
			"x", errors.New("denied by team.example"))
		c.Writes.Fail = func(request string) error {
			if request == createRestoreOfClone {
				return refused
			}
			return nil
		}
		of := c.clone()
		c.reach(of, clonev1beta1.RestoreInProgress)
		c.events.Take()
		Expect(c.Step(of).RequeueAfter).To(Equal(15 * time.Second))
		Expect(c.events.Take()).To(ConsistOf(And(
			HavePrefix("Warning RestoreCreationFailed: failed creating restore "+restoreOfClone(of).Name+" for clone c: "),
			HaveSuffix("denied by team.example"))))
		Expect(DescribeClone(of)).To(HavePrefix("RestoreInProgress" + processing + " (failed creating restore "))
		c.ExpectBudget(of, createRestoreOfClone) // The same refusal is written once.
		Expect(c.events.Take()).To(BeEmpty())
		c.Writes.Fail = nil
		c.finishClone(of)
	})

	It("stays what it is when its cache is behind", func() {
		c := newClones()
		of := c.clone()
		c.Step(of)
		ExpectExists(snapshotOfClone(of))
		By("a cache without the snapshot, whose name the status has")
		c.Writes.Blind = func(key client.ObjectKey, _ client.Object) bool { return key.Name != of.Name }
		c.ExpectSteady(of)
		c.Writes.Blind = nil
		By("a cache with the clone as it was")
		stale := ExpectExists(of.DeepCopy())
		c.others(of)
		c.reach(of, clonev1beta1.CreatingTargetVM)
		c.events.Take()
		c.Writes.Stale = stale
		result, err := c.Try(of)
		Expect(err).NotTo(HaveOccurred(), "a conflict")
		Expect(result).NotTo(BeZero())
		Expect(c.events.Take()).To(BeEmpty())
		c.Writes.Stale = nil
		By("a cache without the target")
		c.Writes.Blind = func(_ client.ObjectKey, object client.Object) bool {
			_, isVM := object.(*v1.VirtualMachine)
			return isVM
		}
		c.finishClone(of)
	})

	It("fails when a user deletes its snapshot or its restore", func() {
		for phase, deleted := range map[clonev1beta1.VirtualMachineClonePhase]func(*vmClone) client.Object{
			clonev1beta1.SnapshotInProgress: func(of *vmClone) client.Object { return snapshotOfClone(of) },
			clonev1beta1.RestoreInProgress:  func(of *vmClone) client.Object { return restoreOfClone(of) },
		} {
			c := newClones()
			of := c.clone()
			c.reach(of, phase)
			if phase == clonev1beta1.RestoreInProgress {
				c.Step(of)
			}
			Expect(K8sClient.Delete(ctx, deleted(of))).To(Succeed())
			c.Step(of)
			Expect(DescribeClone(of)).To(And(HavePrefix("Failed; "), HaveSuffix("does not exist anymore")))
			ExpectGone(deleted(of))
			c.events.Take()
			c.expectQuiet(of)
		}
	})

	for _, phase := range []clonev1beta1.VirtualMachineClonePhase{
		clonev1beta1.PhaseUnset, clonev1beta1.SnapshotInProgress, clonev1beta1.RestoreInProgress,
		clonev1beta1.CreatingTargetVM, clonev1beta1.Succeeded,
	} {
		It("writes nothing once it is being deleted in the phase "+string(phase), func() {
			c := newClones()
			of := c.clone()
			c.reach(of, phase)
			ExpectExists(of).Finalizers = []string{"foregroundDeletion"}
			Expect(K8sClient.Update(ctx, of)).To(Succeed())
			Expect(K8sClient.Delete(ctx, of)).To(Succeed())
			c.events.Take()
			c.expectQuiet(of)
			ExpectExists(of).Finalizers = nil
			Expect(K8sClient.Update(ctx, of)).To(Succeed())
			c.expectQuiet(of)
			ExpectExists(c.Snapshot)
			ExpectExists(c.VM)
		})
	}

	It("is deleted with its target, also while its claims wait", func() {
		c := newClonesOn(storagev1.VolumeBindingWaitForFirstConsumer)
		c.Unbound = true
		of := c.clone()
		c.reach(of, clonev1beta1.Succeeded)
		Expect(K8sClient.Delete(ctx, c.target())).To(Succeed())
		c.Writes.Fail = func(string) error { return ErrInjected }
		_, err := c.Try(of)
		Expect(err).To(Or(Succeed(), MatchError(ErrInjected)))
		ExpectExists(of)
		c.Writes.Fail = nil
		c.Step(of)
		ExpectGone(of)
	})
})
