// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package takeover

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// WorkKinds are the kinds of objects whose work must be finished before a takeover, besides migrations, with the
// version that is read.
var WorkKinds = []schema.GroupVersionKind{
	{Group: "snapshot.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineSnapshot"},
	{Group: "snapshot.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineRestore"},
	{Group: "clone.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineClone"},
	{Group: "backup.kubevirt.io", Version: "v1alpha1", Kind: "VirtualMachineBackup"},
}

// checkWork finds what KubeVirt's components are in the middle of. Vireo's would not know how far they have come.
func (p *Plan) checkWork(c *Cluster) {
	const wait = "Wait until it has ended, or delete it."
	for i := range c.Migrations {
		if m := &c.Migrations[i]; !m.IsFinal() {
			p.stop(name("VirtualMachineInstanceMigration", m), "Its phase is %q. %s", m.Status.Phase, wait)
		}
	}
	for i := range c.Work {
		if o := &c.Work[i]; !finished(o) {
			p.stop(name(o.GetKind(), o), "It has not ended. %s", wait)
		}
	}
	for i := range c.VMs {
		vm := &c.VMs[i]
		if len(vm.Status.VolumeRequests) > 0 {
			p.stop(name("VirtualMachine", vm), "status.volumeRequests has volumes that are being plugged or unplugged. "+
				"Wait until they are, or restart the VM.")
		}
		if dump := vm.Status.MemoryDumpRequest; dump != nil && dump.Phase != v1.MemoryDumpCompleted &&
			dump.Phase != v1.MemoryDumpFailed {
			p.stop(name("VirtualMachine", vm), "Its memory is being dumped (%s). Wait until that has ended.", dump.Phase)
		}
	}
	for i := range c.VMIs {
		vmi := &c.VMIs[i]
		stage, phase := vmistatus.StageOf(vmi.Status.Phase), vmi.Status.Phase
		switch {
		case stage == vmistatus.Preparing, phase == v1.Scheduled:
			p.stop(name("VirtualMachineInstance", vmi), "It is being started (%q). Wait until it runs, or stop it.", phase)
		case stage == vmistatus.Live && vmi.DeletionTimestamp != nil:
			p.stop(name("VirtualMachineInstance", vmi), "It is being stopped. Wait until it is gone.")
		}
	}
}

// finished reports whether the work of an object of WorkKinds has ended.
func finished(o *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "VirtualMachineRestore":
		complete, _, _ := unstructured.NestedBool(o.Object, "status", "complete")
		return complete || hasTrue(o, "Failure")
	case "VirtualMachineBackup":
		return hasTrue(o, "Complete") || hasTrue(o, "Done") || hasTrue(o, "Failed")
	default:
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		return phase == "Succeeded" || phase == "Failed"
	}
}

// hasTrue reports whether an object has a condition with the status True.
func hasTrue(o *unstructured.Unstructured, kind string) bool {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, element := range list {
		if c, ok := element.(map[string]any); ok && c["type"] == kind && c["status"] == "True" {
			return true
		}
	}
	return false
}
