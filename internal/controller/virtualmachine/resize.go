// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/quantity"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of the condition Failure when the CPUs or the memory of a running instance cannot change yet. KubeVirt's
// names.
const (
	ReasonHotPlugCPU    = "HotPlugCPUError"
	ReasonHotPlugMemory = "HotPlugMemoryError"
)

// Messages of the condition RestartRequired. KubeVirt's.
const (
	tooManySockets  = "CPU sockets updated in template spec to a value higher than what's available"
	fewerSockets    = "Reduction of CPU socket count requires a restart"
	armNeedsRestart = "ARM doesn't support CPU hotplug"

	memoryFailed   = "memory updated in template spec. Memory-hotplug failed and is not available for this VM configuration"
	memoryIsFixed  = "memory updated in template spec. Memory-hotplug is not available for this VM configuration"
	lessThanAtBoot = "memory updated in template spec to a value lower than what the VM started with"
	// memoryCannotChange has the problem.
	memoryCannotChange = "memory hotplug not supported, %s"
)

// KubeVirt's errors.
var (
	errCPUsWhileMigrating   = errors.New("CPU hotplug is not allowed while VMI is migrating")
	errMemoryWhileMigrating = errors.New("memory hotplug is not allowed while VMI is migrating")
)

// resizeResult is what became of a change of the template's CPUs or memory.
type resizeResult struct {
	// restart is why the change needs a restart, or "".
	restart string
	// pending reports whether the guest does not have the size of the template yet.
	pending bool
	failure *kit.Failure
}

// followSize gives the instance the size of the template, as far as a running guest can have it.
func (s *Scope) followSize(desired *v1.VirtualMachineInstance, template *v1.VirtualMachineInstanceSpec) *kit.Failure {
	for _, follow := range []func(*v1.VirtualMachineInstance, *v1.VirtualMachineInstanceSpec) resizeResult{s.resizeCPUs,
		s.resizeMemory} {
		result := follow(desired, template)
		if result.failure != nil {
			return result.failure
		}
		s.diff.resizing = s.diff.resizing || result.pending
		if s.diff.restart == "" {
			s.diff.restart = result.restart
		}
	}
	return nil
}

// resizeCPUs sets the number of sockets.
func (s *Scope) resizeCPUs(desired *v1.VirtualMachineInstance, template *v1.VirtualMachineInstanceSpec) resizeResult {
	want, has := resize.Sockets(&template.Domain), resize.Sockets(&desired.Spec.Domain)
	current, known := resize.Current(desired)
	running := has
	if known && current.Sockets > 0 {
		running = current.Sockets
	}
	limit := uint32(0)
	if resize.CanResizeCPUs(desired) {
		limit = desired.Spec.Domain.CPU.MaxSockets
	}
	switch {
	case want < running:
		return resizeResult{restart: fewerSockets}
	case want == has:
		return reported(desired, v1.VirtualMachineInstanceVCPUChange, want == running)
	case desired.Spec.Architecture == "arm64":
		return resizeResult{restart: armNeedsRestart}
	case want > limit:
		return resizeResult{restart: tooManySockets}
	case !known || desired.Status.Phase != v1.Running:
		return resizeResult{pending: true}
	case s.migrates:
		return resizeResult{failure: &kit.Failure{
			Reason:  ReasonHotPlugCPU,
			Message: fmt.Sprintf("Error encountered while handling CPU change request: %v", errCPUsWhileMigrating),
		}}
	}
	before := podspec.VCPUs(desired)
	desired.Spec.Domain.CPU.Sockets = want
	added := podspec.VCPUs(desired) - before
	grow(&desired.Spec.Domain.Resources, &template.Domain.Resources, corev1.ResourceCPU,
		*resource.NewMilliQuantity(added*1000/int64(max(s.CPUAllocationRatio, 1)), resource.DecimalSI))
	return resizeResult{pending: true}
}

// resizeMemory sets the size of the memory. Unlike KubeVirt it also does so if the guest cannot migrate.
func (s *Scope) resizeMemory(desired *v1.VirtualMachineInstance, template *v1.VirtualMachineInstanceSpec) resizeResult {
	want, memory := quantity.GuestMemory(&template.Domain), desired.Spec.Domain.Memory
	if want == nil || memory == nil || memory.Guest == nil {
		return resizeResult{}
	}
	if want.Cmp(*memory.Guest) == 0 {
		current, known := resize.Current(desired)
		result := reported(desired, v1.VirtualMachineInstanceMemoryChange, !known || current.Memory == 0 ||
			current.Memory == want.Value())
		if result.restart != "" {
			result.restart = memoryFailed + ": " + result.restart
		}
		return result
	}
	if memory.MaxGuest == nil {
		return resizeResult{restart: memoryIsFixed}
	}
	if problem := resize.CheckMemory(template, desired.Spec.Architecture, *want, *memory.MaxGuest); problem != nil {
		return resizeResult{restart: fmt.Sprintf(memoryCannotChange, problem.Message)}
	}
	has := desired.Status.Memory
	if has == nil || has.GuestAtBoot == nil || has.GuestCurrent == nil || desired.Status.Phase != v1.Running {
		return resizeResult{pending: true}
	}
	if want.Cmp(*has.GuestAtBoot) < 0 {
		return resizeResult{restart: lessThanAtBoot}
	}
	if s.migrates {
		return resizeResult{failure: &kit.Failure{
			Reason:  ReasonHotPlugMemory,
			Message: fmt.Sprintf("error encountered while handling memory hotplug requests: %v", errMemoryWhileMigrating),
		}}
	}
	added := want.DeepCopy()
	added.Sub(*memory.Guest)
	memory.Guest = ptr.To(want.DeepCopy())
	grow(&desired.Spec.Domain.Resources, &template.Domain.Resources, corev1.ResourceMemory, added)
	return resizeResult{pending: true}
}

// reported returns how far a change is that is in the instance's spec. done reports whether the guest has it.
func reported(vmi *v1.VirtualMachineInstance, kind v1.VirtualMachineInstanceConditionType, done bool) resizeResult {
	condition := vmistatus.FindCondition(&vmi.Status, kind)
	result := resizeResult{pending: !done || condition != nil}
	if condition != nil && condition.Status == corev1.ConditionFalse {
		result.restart = condition.Message
	}
	return result
}

// grow adds to the requests and limits of an instance if its template has one of them. Unlike in KubeVirt, a request
// that is the default for a limit grows with it: otherwise the QoS class of the Pod would change, which Kubernetes
// refuses.
func grow(has, template *v1.ResourceRequirements, name corev1.ResourceName, by resource.Quantity) {
	request, limit := template.Requests[name], template.Limits[name]
	if request.IsZero() && limit.IsZero() {
		return
	}
	for _, list := range []corev1.ResourceList{has.Requests, has.Limits} {
		amount, found := list[name]
		if !found || amount.IsZero() {
			continue
		}
		amount = amount.DeepCopy()
		amount.Add(by)
		list[name] = amount
	}
}
