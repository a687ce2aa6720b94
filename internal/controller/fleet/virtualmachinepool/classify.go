// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// noOrdinal is the ordinal of a VM whose name is not that of a pool's VM.
const noOrdinal = -1

// member is a VM of the pool, with its VMI.
type member struct {
	vm *v1.VirtualMachine
	// vmi is nil if the VM has none.
	vmi *v1.VirtualMachineInstance
	// ordinal is the number at the end of the VM's name.
	ordinal int
}

func (m *member) deleting() bool { return m.vm.DeletionTimestamp != nil }

// revision returns the name of the revision that the VM's spec was made from, "" if it is unknown.
func (m *member) revision() string { return m.vm.Labels[v1.VirtualMachinePoolRevisionName] }

// nextRevision returns the name of the revision that the VM's next VMI is labeled with.
func (m *member) nextRevision() string {
	if m.vm.Spec.Template == nil {
		return ""
	}
	return m.vm.Spec.Template.ObjectMeta.Labels[v1.VirtualMachinePoolRevisionName]
}

// runningRevision returns the name of the revision that the VMI was made from.
func (m *member) runningRevision() string { return m.vmi.Labels[v1.VirtualMachinePoolRevisionName] }

// ready reports whether the guest runs, is not being stopped, and can serve traffic.
func (m *member) ready() bool {
	return m.vmi != nil && !m.stopping() && m.vmi.Status.Phase == v1.Running &&
		vmistatus.IsConditionTrue(&m.vmi.Status, v1.VirtualMachineInstanceReady)
}

// stopping reports whether the VMI is being deleted, or its stop was requested.
func (m *member) stopping() bool {
	return m.vmi.DeletionTimestamp != nil ||
		slices.ContainsFunc(m.vm.Status.StateChangeRequests, func(r v1.VirtualMachineStateChangeRequest) bool {
			return r.Action == v1.StopRequest && r.UID != nil && *r.UID == m.vmi.UID
		})
}

// shouldRun reports whether the guest should run. A guest that its user has stopped should not.
func (m *member) shouldRun() bool {
	strategy, err := m.vm.RunStrategy()
	switch {
	case err != nil || strategy == v1.RunStrategyHalted:
		return false
	case strategy == v1.RunStrategyAlways:
		return true
	case m.vmi != nil:
		return !m.vmi.IsFinal()
	default:
		return m.vm.Status.PrintableStatus != v1.VirtualMachineStatusStopped
	}
}

// replaceable contains the printable statuses of failures that a replacement of the VM may solve. KubeVirt also
// replaces VMs that cannot be scheduled; Vireo keeps them, because their replacements could not be scheduled either.
var replaceable = []v1.VirtualMachinePrintableStatus{
	v1.VirtualMachineStatusCrashLoopBackOff, v1.VirtualMachineStatusDataVolumeError, v1.VirtualMachineStatusPvcNotFound,
	v1.VirtualMachineStatusErrImagePull, v1.VirtualMachineStatusImagePullBackOff,
}

// Defaults of spec.autohealing. KubeVirt's values.
const (
	defaultFailureThreshold = 3
	defaultFailingDuration  = 5 * time.Minute
)

// healAt returns the time at which the VM is to be replaced because it fails to start, and false if it does not fail.
func (m *member) healAt(healing *poolv1.VirtualMachinePoolAutohealingStrategy) (time.Time, bool) {
	if healing == nil || m.deleting() || m.ready() {
		return time.Time{}, false
	}
	threshold, duration := defaultFailureThreshold, defaultFailingDuration
	if healing.StartUpFailureThreshold != nil {
		threshold = int(*healing.StartUpFailureThreshold)
	}
	if healing.MinFailingToStartDuration != nil {
		duration = healing.MinFailingToStartDuration.Duration
	}
	if f := m.vm.Status.StartFailure; f != nil && f.ConsecutiveFailCount >= threshold {
		return m.vm.CreationTimestamp.Time, true
	}
	notReady := conditions.Find(m.vm.Status.Conditions, v1.VirtualMachineReady)
	if notReady == nil || notReady.Status != corev1.ConditionFalse ||
		!slices.Contains(replaceable, m.vm.Status.PrintableStatus) {
		return time.Time{}, false
	}
	// A VM that was stopped before it started has been failing only since its VMI exists.
	since := notReady.LastTransitionTime.Time
	if m.vmi != nil && m.vmi.CreationTimestamp.After(since) {
		since = m.vmi.CreationTimestamp.Time
	}
	return since.Add(duration), true
}

// classified contains the VMs of a namespace that concern one pool.
type classified struct {
	// members are owned by the pool and match its selector, or are being deleted.
	members []*member
	// detached are owned by the pool and do not match its selector any more.
	detached []*v1.VirtualMachine
}

// classify finds the VMs of a pool: those whose controller has its UID.
func classify(
	uid types.UID, selector labels.Selector, vms []v1.VirtualMachine, vmis []v1.VirtualMachineInstance,
) classified {
	instances := make(map[types.UID]*v1.VirtualMachineInstance, len(vmis))
	for i := range vmis {
		if owner := metav1.GetControllerOf(&vmis[i]); owner != nil {
			instances[owner.UID] = &vmis[i]
		}
	}
	var found classified
	for i := range vms {
		vm := &vms[i]
		owner := metav1.GetControllerOf(vm)
		switch {
		case owner == nil || owner.UID != uid:
		case vm.DeletionTimestamp == nil && !selector.Matches(labels.Set(vm.Labels)):
			found.detached = append(found.detached, vm)
		default:
			_, ordinal := splitName(vm.Name)
			found.members = append(found.members, &member{vm: vm, vmi: instances[vm.UID], ordinal: ordinal})
		}
	}
	return found
}

// leftovers returns the VMs with the finalizer of pools that are not owned by the pool with this name and UID, but were
// owned by an earlier pool of the name. The UID is empty if there is no pool.
func leftovers(name string, uid types.UID, vms []v1.VirtualMachine) []*v1.VirtualMachine {
	var found []*v1.VirtualMachine
	for i := range vms {
		vm := &vms[i]
		// A VM that was detached has no owner, whether the pool still exists or not.
		owner := ownerUID(vm)
		if hasFinalizer(vm) && formerPool(vm) == name && (owner == "" || owner != uid) {
			found = append(found, vm)
		}
	}
	return found
}

// formerPool returns the name of the pool that owns or owned a VM. The name of a VM that was detached contains it.
func formerPool(vm *v1.VirtualMachine) string {
	if owner := poolOf(vm); owner != nil {
		return owner.Name
	}
	name, _ := splitName(vm.Name)
	return name
}

func ownerUID(vm *v1.VirtualMachine) types.UID {
	if owner := poolOf(vm); owner != nil {
		return owner.UID
	}
	return ""
}

// poolOf returns the reference to the pool that is a VM's controller, or nil.
func poolOf(vm *v1.VirtualMachine) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(vm)
	if owner == nil || owner.Kind != poolapi.VirtualMachinePoolKind {
		return nil
	}
	if version, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || version.Group != poolapi.GroupName {
		return nil
	}
	return owner
}

// vmName returns the name of the pool's VM with this ordinal.
func vmName(pool string, ordinal int) string { return pool + "-" + strconv.Itoa(ordinal) }

// splitName returns the pool's name and the ordinal in a VM's name.
func splitName(name string) (pool string, ordinal int) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", noOrdinal
	}
	ordinal, err := strconv.Atoi(name[i+1:])
	if err != nil || ordinal < 0 || vmName(name[:i], ordinal) != name {
		return "", noOrdinal
	}
	return name[:i], ordinal
}
