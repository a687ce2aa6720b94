// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

func retained(s *vmSnapshot) {
	s.Spec.DeletionPolicy = ptr.To(snapshotv1beta1.VirtualMachineSnapshotContentRetain)
}

var _ = Describe("VirtualMachineSnapshot that is deleted", func() {
	var w *snapshots
	BeforeEach(func() { w = newSnapshots() })

	// Each prepares a snapshot up to a point.
	locked := func(of *vmSnapshot) { w.lock(of) }
	requested := func(of *vmSnapshot) { w.settleBoth(of) }
	ready := func(of *vmSnapshot) {
		w.settleBoth(of)
		w.report(of, "root", true)
		w.settleBoth(of)
	}
	failed := func(of *vmSnapshot) {
		w.settleBoth(of)
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.settleBoth(of)
	}
	DescribeTable("leaves the VM unlocked",
		func(prepare func(*vmSnapshot), change func(*vmSnapshot), kept bool) {
			vm := w.vm()
			of := w.request("snap", change)
			prepare(of)
			Expect(K8sClient.Delete(ctx, of)).To(Succeed())
			w.settleBoth(of)
			ExpectGone(of)
			Expect(IsLockedForSnapshot(vm)).To(BeFalse())
			if !kept {
				ExpectGone(ContentOf(of))
				return
			}
			Expect(ExpectExists(ContentOf(of)).Finalizers).To(BeEmpty())
			Expect(ContentOf(of).DeletionTimestamp).To(BeNil())
		},
		Entry("locked", locked, func(*vmSnapshot) {}, false),
		Entry("locked, retained", locked, retained, false),
		Entry("requested", requested, func(*vmSnapshot) {}, false),
		Entry("ready", ready, func(*vmSnapshot) {}, false),
		Entry("ready, retained", ready, retained, true),
		Entry("failed", failed, func(*vmSnapshot) {}, false),
		Entry("waiting for another snapshot", func(of *vmSnapshot) {
			vm := ExpectExists(&v1.VirtualMachine{ObjectMeta: metaOf(w.ns, "vm")})
			vm.Status.SnapshotInProgress = ptr.To("other")
			ExpectStatus(vm)
			w.settleBoth(of)
			vm.Status.SnapshotInProgress = nil
			ExpectStatus(vm)
		}, func(*vmSnapshot) {}, false),
	)

	It("keeps the VM locked until its content is gone", func() {
		vm := w.vm()
		of := w.request("snap")
		w.settleBoth(of)
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(HavePrefix("Deleting; Progressing=False VM snapshot is deleting"))
		w.ExpectSteady(of)
		Expect(IsLockedForSnapshot(vm)).To(BeTrue())
		w.contents.Step(ContentOf(of))
		ExpectGone(ContentOf(of))
		// The snapshot's finalizer is removed last: until then, a failure to unlock the VM is followed by another attempt.
		w.ExpectOrder(of, patchVM, patchVMStatus, patchSnapshot)
		ExpectGone(of)
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
	})

	It("unlocks the VM though the cache does not show the lock", func() {
		vm := w.vm()
		stale := ExpectExists(vm).DeepCopy()
		of := w.request("snap")
		w.settleBoth(of)
		w.Writes.Stale = stale
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		w.settleBoth(of)
		ExpectGone(of)
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
	})

	It("unlocks a VM whose snapshot was removed by force", func() {
		vm := w.vm()
		of := w.request("snap")
		w.settleBoth(of)
		ExpectExists(of).Finalizers = nil
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		w.settleBoth(of)
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
	})

	It("unlocks a VM whose snapshot was removed by force and created again for another VM", func() {
		vm := w.vm()
		of := w.request("snap")
		w.settleBoth(of)
		ExpectExists(of).Finalizers = nil
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		Expect(IsLockedForSnapshot(vm)).To(BeTrue())
		again := w.request("snap", func(s *vmSnapshot) { s.Spec.Source.Name = "other" })
		w.settleBoth(again)
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
	})

	DescribeTable("survives a failure of each write",
		func(run func(of *vmSnapshot), expect func(of *vmSnapshot)) {
			vm := w.vm()
			for fail := 1; ; fail++ {
				of := w.request("snap")
				count, injected := 0, false
				w.Writes.Fail = func(string) error {
					if count++; count == fail {
						injected = true
						return ErrInjected
					}
					return nil
				}
				run(of)
				w.Writes.Fail = nil
				expect(of)
				Expect(IsLockedForSnapshot(vm)).To(BeFalse(), "write %d failed", fail)
				Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, of))).To(Succeed())
				w.settleBoth(of)
				ExpectGone(of)
				if !injected {
					Expect(fail).To(BeNumerically(">", 8))
					return
				}
			}
		},
		Entry("when it is taken", func(of *vmSnapshot) {
			w.settleBoth(of)
			w.report(of, "root", true)
			w.settleBoth(of)
		}, func(of *vmSnapshot) { Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady)) }),
		Entry("when it is deleted", func(of *vmSnapshot) {
			w.settleBoth(of)
			Expect(K8sClient.Delete(ctx, of)).To(Succeed())
			w.settleBoth(of)
		}, func(of *vmSnapshot) {
			ExpectGone(of)
			ExpectGone(ContentOf(of))
		}),
	)

	It("is not deleted from under a reconciliation that reads a stale snapshot", func() {
		w.vm()
		of := w.request("snap")
		w.settleBoth(of)
		w.Writes.Stale = ExpectExists(of).DeepCopy()
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		w.Step(of)
		w.Writes.Stale = nil
		w.settleBoth(of)
		ExpectGone(of)
	})
})
