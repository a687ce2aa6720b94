// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinerestore"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Writes of a restore's reconciliation.
const (
	patchRestore       = "patch VirtualMachineRestore"
	patchRestoreStatus = "patch VirtualMachineRestore/status"
	createClaim        = "create PersistentVolumeClaim"
	createDataVolume   = "create DataVolume"
	deleteDataVolume   = "delete DataVolume"
	deleteClaim        = "delete PersistentVolumeClaim"
	patchVM            = "patch VirtualMachine"
	patchVMStatus      = "patch VirtualMachine/status"
)

// restores is a reconciler of restores on the suite's API server, in a namespace with a VM and a usable snapshot of it.
type restores struct {
	*virtualmachinerestore.Reconciler
	*Restorable
	writes *Writes
	events *RecordedEvents
}

// newRestores returns a halted VM with a disk of a DataVolume template, one of a claim, and an instance type, and a snapshot of it.
func newRestores(changes ...func(*v1.VirtualMachine)) *restores {
	GinkgoHelper()
	r := &restores{Restorable: NewRestorable(changes...), writes: NewWrites(), events: &RecordedEvents{}}
	r.Reconciler = &virtualmachinerestore.Reconciler{
		Client: r.writes, APIReader: AsController, Recorder: r.events, DataVolumes: DataVolumes{},
		VolumeSnapshots: VolumeSnapshots{}, Clock: r.FakeClock,
	}
	r.Take()
	return r
}

func (r *restores) reconcile(of *snapshotv1beta1.VirtualMachineRestore) (ctrl.Result, error) {
	return r.Reconcile(ctx, RequestOf(of))
}

// expectReconciled reconciles once and expects exactly these writes, in any order.
func (r *restores) expectReconciled(of *snapshotv1beta1.VirtualMachineRestore, writes ...string) ctrl.Result {
	GinkgoHelper()
	result, err := r.reconcile(of)
	Expect(err).NotTo(HaveOccurred())
	r.writes.ExpectWritten(writes...)
	return result
}

func (r *restores) expectQuiet(of *snapshotv1beta1.VirtualMachineRestore) ctrl.Result {
	GinkgoHelper()
	result := r.expectReconciled(of)
	Expect(r.events.Take()).To(BeEmpty())
	return result
}

// until reconciles, in a cluster with storage and an importer, until done returns true.
func (r *restores) until(of *snapshotv1beta1.VirtualMachineRestore, done func() bool) {
	GinkgoHelper()
	for range 60 {
		_, err := r.reconcile(of)
		Expect(client.IgnoreNotFound(err)).To(Or(Succeed(), MatchError(ErrInjected)))
		r.Provision()
		if done() {
			return
		}
	}
	Fail(fmt.Sprintf("the restore does not get there: %+v", ExpectExists(of).Status))
}

// finish reconciles until the restore is complete.
func (r *restores) finish(of *snapshotv1beta1.VirtualMachineRestore) {
	GinkgoHelper()
	r.until(of, func() bool { return IsRestoreComplete(of) })
}

// running creates the VM's VMI.
func (r *restores) running() *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := builder.MakeVMI("vm").Namespace(r.NS).OwnedBy(r.VM).Obj()
	ExpectCreated(vmi)
	SetVMIStatus(vmi, v1.Running)
	return vmi
}

// conditionsOf formats the conditions of a restore.
func conditionsOf(of *snapshotv1beta1.VirtualMachineRestore) []string {
	GinkgoHelper()
	var out []string
	for _, c := range ExpectExists(of).Status.Conditions {
		out = append(out, fmt.Sprintf("%s=%s: %s", c.Type, c.Status, c.Reason))
	}
	return out
}

func inPlace(spec *snapshotv1beta1.VirtualMachineRestoreSpec) {
	spec.VolumeRestorePolicy = ptr.To(snapshotv1beta1.VolumeRestorePolicyInPlace)
}

func toNewVM(spec *snapshotv1beta1.VirtualMachineRestoreSpec) {
	spec.Target.Name = "other"
}

func readiness(policy snapshotv1beta1.TargetReadinessPolicy) func(*snapshotv1beta1.VirtualMachineRestoreSpec) {
	return func(spec *snapshotv1beta1.VirtualMachineRestoreSpec) { spec.TargetReadinessPolicy = &policy }
}
