// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package memorydump decides what virt-controller does next for the memory dump of a VM. It is pure.
//
// A user requests the dump, and its removal, by a verb of virt-api, which writes status.memoryDumpRequest of the VM.
// The claim is a utility volume of the VMI, and no volume of the VM: the VM's spec is the user's. The agent reports
// about the dump in the volume's status.
package memorydump

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Overhead is what a dump needs beside the guest's memory. KubeVirt's.
const Overhead = 100 << 20

// Observed is what the decision depends on.
type Observed struct {
	// Now is the time.
	Now time.Time
	// Request is the request of the VM.
	Request *v1.VirtualMachineMemoryDumpRequest
	// VMI is the VM's VMI that has not ended, or nil.
	VMI *v1.VirtualMachineInstance
	// Claim is the claim of the request, or nil.
	Claim *corev1.PersistentVolumeClaim
}

// Step is what to do next. The status is written last: it follows from what is done.
type Step struct {
	// Request is the new request; nil removes it.
	Request *v1.VirtualMachineMemoryDumpRequest
	// AddVolume is added to the VMI's utility volumes, RemoveVolume is the name of one that is removed.
	AddVolume    *v1.UtilityVolume
	RemoveVolume string
	// Annotation is the value of the claim's annotation kubevirt.io/memory-dump, if it is to have one.
	Annotation string
}

type planner struct {
	Observed
	step Step
	// volume is the utility volume in the VMI, and status its status. Each is nil if there is none.
	volume *v1.UtilityVolume
	status *v1.VolumeStatus
}

// Next returns what to do next for a request.
func Next(o Observed) Step {
	p := &planner{Observed: o, step: Step{Request: o.Request.DeepCopy()}}
	if o.VMI != nil {
		p.volume = vmistatus.FindUtility(&o.VMI.Spec, o.Request.ClaimName)
		// Another volume may have the name.
		if status := vmistatus.FindVolume(&o.VMI.Status, o.Request.ClaimName); vmistatus.IsHotplugged(status) && !p.isDisk() {
			p.status = status
		}
	}
	switch o.Request.Phase {
	case v1.MemoryDumpAssociating:
		p.associate()
	case v1.MemoryDumpInProgress:
		p.follow()
	case v1.MemoryDumpUnmounting:
		if p.step.Annotation = ptr.Deref(o.Request.FileName, ""); p.detached() {
			p.step.Request.Phase = v1.MemoryDumpCompleted
		}
	case v1.MemoryDumpDissociating:
		if p.detached() {
			p.step.Request = nil
		}
	default:
		p.detached()
	}
	return p.step
}

// isDisk reports whether a volume of the VMI has the claim, or the name of the claim.
func (p *planner) isDisk() bool {
	return slices.ContainsFunc(p.VMI.Spec.Volumes, func(v v1.Volume) bool {
		return v.Name == p.Request.ClaimName || v.WrittenClaim() == p.Request.ClaimName
	})
}

// associate adds the volume.
func (p *planner) associate() {
	switch problem := p.problem(); {
	case problem != "":
		p.fail(problem)
	case p.volume != nil:
		p.step.Request.Phase, p.step.Request.Message = v1.MemoryDumpInProgress, ""
	case p.status != nil: // That of an earlier dump, whose claim is still being detached.
	default:
		p.step.AddVolume = &v1.UtilityVolume{
			Name: p.Request.ClaimName, Type: ptr.To(v1.MemoryDump),
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.Request.ClaimName},
		}
	}
}

// problem returns why no memory can be dumped, or "". The texts about the claim are KubeVirt's.
func (p *planner) problem() string {
	switch {
	case p.VMI == nil || !p.VMI.IsRunning() || p.VMI.DeletionTimestamp != nil:
		return "the VM is not running"
	case p.VMI.Spec.Domain.Devices.DisableHotplug:
		return "the VM has disableHotplug set, and the claim of a memory dump is attached while the guest runs"
	case p.Claim == nil:
		return fmt.Sprintf("pvc [%s] does not exist", p.Request.ClaimName)
	case vmistatus.IsBlockClaim(p.Claim):
		return "pvc should be filesystem pvc"
	case slices.Equal(p.Claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}):
		return "pvc access mode can't be read only"
	case p.isDisk():
		return fmt.Sprintf("pvc [%s] is a volume of the VM: use another one", p.Request.ClaimName)
	}
	size, need := p.Claim.Status.Capacity.Storage(), needed(p.VMI)
	if p.Claim.Status.Phase == corev1.ClaimBound && !size.IsZero() && need != nil && size.Cmp(*need) < 0 {
		return fmt.Sprintf("pvc size [%s] should be bigger then [%s]", size, need)
	}
	return ""
}

// needed returns how large a dump is at least, or nil if the memory of the guest is not known.
func needed(vmi *v1.VirtualMachineInstance) *resource.Quantity {
	if vmi.Status.Memory == nil || vmi.Status.Memory.GuestCurrent == nil {
		return nil
	}
	need := vmi.Status.Memory.GuestCurrent.DeepCopy()
	need.Add(*resource.NewQuantity(Overhead, resource.BinarySI))
	return &need
}

// follow copies what the agent reports.
func (p *planner) follow() {
	r := p.step.Request
	if p.VMI == nil || p.volume == nil {
		p.fail("the VM stopped, or was restarted, before its memory was dumped")
		return
	}
	if p.status == nil {
		return
	}
	if info := p.status.MemoryDumpVolume; info != nil {
		r.StartTimestamp, r.EndTimestamp, r.FileName = info.StartTimestamp, info.EndTimestamp, ptr.To(info.TargetFileName)
	}
	switch p.status.Phase {
	case v1.MemoryDumpVolumeCompleted:
		r.Phase, r.Message = v1.MemoryDumpUnmounting, ""
	case v1.MemoryDumpVolumeFailed:
		p.fail(p.status.Message)
	case v1.MemoryDumpVolumeInProgress:
		r.Message = ""
	default:
		r.Message = p.status.Message // why the claim is not attached yet
	}
}

// detached removes the volume. It returns true when nothing of it is left.
func (p *planner) detached() bool {
	if p.volume != nil && ptr.Deref(p.volume.Type, "") == v1.MemoryDump {
		p.step.RemoveVolume = p.volume.Name
		return false
	}
	return p.status == nil
}

func (p *planner) fail(problem string) {
	r := p.step.Request
	r.Phase, r.Message, r.FileName = v1.MemoryDumpFailed, problem, nil
	if r.EndTimestamp == nil {
		r.EndTimestamp = ptr.To(metav1.NewTime(p.Now.Truncate(time.Second)))
	}
	p.detached()
}
