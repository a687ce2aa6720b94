// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineclone"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinerestore"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Writes of a clone's reconciliation.
const (
	patchCloneStatus     = "patch VirtualMachineClone/status"
	createVMSnapshot     = "create VirtualMachineSnapshot"
	createRestoreOfClone = "create VirtualMachineRestore"
	deleteVMSnapshot     = "delete VirtualMachineSnapshot"
	deleteRestoreOfClone = "delete VirtualMachineRestore"
)

type (
	vmClone   = clonev1beta1.VirtualMachineClone
	cloneSpec = clonev1beta1.VirtualMachineCloneSpec
)

// clones is a reconciler of clones on the suite's API server, in a namespace with a VM, a snapshot of it and a
// reconciler of restores. The clone says by patches in its restore what the target is like, and the restore applies
// them.
type clones struct {
	*Restorable
	Steps
	reconciler *virtualmachineclone.Reconciler
	// events are those of clones.
	events *RecordedEvents
	// restores is the reconciler of restores. It writes through another client.
	restores *virtualmachinerestore.Reconciler
}

func newClones(changes ...func(*v1.VirtualMachine)) *clones {
	GinkgoHelper()
	return newClonesOn(storagev1.VolumeBindingImmediate, changes...)
}

func newClonesOn(binding storagev1.VolumeBindingMode, changes ...func(*v1.VirtualMachine)) *clones {
	GinkgoHelper()
	c := &clones{
		Restorable: NewRestorableOn(binding, changes...), Steps: Steps{Writes: NewWrites()}, events: &RecordedEvents{},
	}
	c.restores = &virtualmachinerestore.Reconciler{
		Client: NewWrites(), APIReader: AsController, Recorder: &RecordedEvents{}, DataVolumes: DataVolumes{},
		VolumeSnapshots: VolumeSnapshots{}, Clock: c.FakeClock,
	}
	c.reconciler = &virtualmachineclone.Reconciler{
		Client: c.Writes, APIReader: AsController, Recorder: c.events, Clock: c.FakeClock,
	}
	c.Of = c.reconciler
	c.Take()
	c.snapshottable(true)
	return c
}

// snapshottable sets whether snapshots of the VM's volumes can be taken.
func (c *clones) snapshottable(enabled bool) {
	GinkgoHelper()
	before := client.MergeFrom(ExpectExists(c.VM).DeepCopy())
	c.VM.Status.VolumeSnapshotStatuses = []v1.VolumeSnapshotStatus{{Name: "root", Enabled: enabled},
		{Name: "data", Enabled: true}}
	Expect(K8sClient.Status().Patch(ctx, c.VM, before)).To(Succeed())
}

// clone creates a clone of the VM.
func (c *clones) clone(changes ...func(*cloneSpec)) *vmClone {
	GinkgoHelper()
	return RequestClone(c.NS, "c", changes...)
}

// expectQuiet expects that a reconciliation neither writes nor records events.
func (c *clones) expectQuiet(of *vmClone) ctrl.Result {
	GinkgoHelper()
	result := c.ExpectSteady(of)
	Expect(c.events.Take()).To(BeEmpty())
	return result
}

func snapshotOfClone(of *vmClone) *snapshotv1beta1.VirtualMachineSnapshot {
	return &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace,
		Name: "tmp-snapshot-" + string(of.UID)}}
}

func restoreOfClone(of *vmClone) *snapshotv1beta1.VirtualMachineRestore {
	return &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace,
		Name: "tmp-restore-" + string(of.UID)}}
}

func (c *clones) target() *v1.VirtualMachine { return builder.MakeVM("copy").Namespace(c.NS).Obj() }

// others does what the reconcilers of snapshots and restores, the storage driver and the importer do.
func (c *clones) others(of *vmClone) {
	GinkgoHelper()
	snapshot := snapshotOfClone(of)
	if K8sClient.Get(ctx, client.ObjectKeyFromObject(snapshot), snapshot) == nil && snapshot.Status == nil {
		c.Taken(snapshot)
	}
	for range 12 {
		_, err := Reconcile(c.restores, restoreOfClone(of))
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		c.Provision()
	}
}

// reach reconciles the clone, and everything else, until it is in a phase. Writes that a test makes fail are tried
// again.
func (c *clones) reach(of *vmClone, phase clonev1beta1.VirtualMachineClonePhase) {
	GinkgoHelper()
	for range 30 {
		if ExpectExists(of).Status.Phase == phase {
			return
		}
		_, err := c.Try(of)
		Expect(err).To(Or(Succeed(), MatchError(ErrInjected)))
		c.others(of)
	}
	Fail(fmt.Sprintf("the clone does not get to %s: %+v", phase, ExpectExists(of).Status))
}

// finishClone reconciles until the clone has succeeded and nothing temporary is left.
func (c *clones) finishClone(of *vmClone) {
	GinkgoHelper()
	c.reach(of, clonev1beta1.Succeeded)
	for range 5 {
		_, err := c.Try(of)
		Expect(err).To(Or(Succeed(), MatchError(ErrInjected)))
		c.others(of)
	}
	Expect(ExpectExists(of).Status.RestoreName).To(BeNil())
	ExpectGone(snapshotOfClone(of))
	ExpectGone(restoreOfClone(of))
}

// stepUntil reconciles the clone, and everything else, until done returns true.
func (c *clones) stepUntil(of *vmClone, done func() bool) {
	GinkgoHelper()
	for range 10 {
		c.Step(of)
		if done() {
			return
		}
		c.others(of)
	}
	Fail("the clone does not get there: " + DescribeClone(of))
}
