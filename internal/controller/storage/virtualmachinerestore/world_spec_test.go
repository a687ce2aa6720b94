// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore_test

import (
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
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
	Steps
	events *RecordedEvents
}

// newRestores returns a halted VM with a disk of a DataVolume template, one of a claim, and an instance type, and a
// snapshot of it.
func newRestores(changes ...func(*v1.VirtualMachine)) *restores {
	GinkgoHelper()
	r := &restores{Restorable: NewRestorable(changes...), Steps: Steps{Writes: NewWrites()}, events: &RecordedEvents{}}
	r.Reconciler = &virtualmachinerestore.Reconciler{
		Client: r.Writes, APIReader: AsController, Recorder: r.events, DataVolumes: DataVolumes{},
		VolumeSnapshots: VolumeSnapshots{}, Clock: r.FakeClock,
	}
	r.Of = r.Reconciler
	r.Take()
	return r
}

// expectQuiet expects that a reconciliation neither writes nor records events.
func (r *restores) expectQuiet(of *snapshotv1beta1.VirtualMachineRestore) ctrl.Result {
	GinkgoHelper()
	result := r.ExpectSteady(of)
	Expect(r.events.Take()).To(BeEmpty())
	return result
}

// until reconciles, in a cluster with storage and an importer, until done returns true.
func (r *restores) until(of *snapshotv1beta1.VirtualMachineRestore, done func() bool) {
	GinkgoHelper()
	for range 60 {
		_, err := r.Try(of)
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

// objects returns what a restore creates and deletes in the namespace: claims, DataVolumes, VMs and revisions, each
// with its UID, and whether it is being deleted.
func (r *restores) objects() []string {
	GinkgoHelper()
	var out []string
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), cdi.GroupVersion.WithKind("DataVolume"),
		v1.VirtualMachineGroupVersionKind, appsv1.SchemeGroupVersion.WithKind("ControllerRevision"),
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		Expect(K8sClient.List(ctx, list, client.InNamespace(r.NS))).To(Succeed())
		for i := range list.Items {
			object := &list.Items[i]
			text := fmt.Sprintf("%s %s %s", kind.Kind, object.Name, object.UID)
			if object.DeletionTimestamp != nil {
				text += " is being deleted"
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
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
