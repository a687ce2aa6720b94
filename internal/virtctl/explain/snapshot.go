// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package explain has the command explain: why a VM does not run or what it waits for, found in the objects around it.
//
// Gathering is one half and understanding the other: Explain is a pure function from a Snapshot to a Report.
package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Snapshot is what the cluster says about a VM at a moment. What is nil is not there, or may not be seen, which Hidden tells.
type Snapshot struct {
	Now             time.Time
	Namespace, Name string
	// Program is how the user calls this program.
	Program string

	VM  *v1.VirtualMachine
	VMI *v1.VirtualMachineInstance
	// Pods are the instance's launcher Pods, the newest first.
	Pods []corev1.Pod
	// Migrations are those of the instance, the newest first.
	Migrations []v1.VirtualMachineInstanceMigration
	// Claims are those that the VM's volumes name. A nil one is missing.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Classes are the storage classes: whether each waits for a first consumer, and which is the default.
	Classes      map[string]Class
	DefaultClass string
	// Node is the one that the instance is on, Agent the Pod of virt-handler there.
	Node  *corev1.Node
	Agent *corev1.Pod
	// Install is what runs VMs.
	Install Install
	// Events are those of all these objects, the newest first.
	Events []corev1.Event
	// Hidden says what the user may not see, by what it would have told.
	Hidden map[Area]bool
}

// Class is a storage class.
type Class struct{ WaitsForConsumer bool }

// Install is what runs VMs in the cluster.
type Install struct {
	// KubeVirt is the object that configures it.
	KubeVirt *v1.KubeVirt
	// Namespace is where it is.
	Namespace string
	// Controller and API are how many of their Pods are ready; negative if not known.
	Controller, API int
}

// Area is a part of the cluster that may be hidden from a user.
type Area string

// Areas.
const (
	AreaPods       Area = "pods"
	AreaMigrations Area = "virtualmachineinstancemigrations"
	AreaClaims     Area = "persistentvolumeclaims"
	AreaClasses    Area = "storageclasses"
	AreaNodes      Area = "nodes"
	AreaInstall    Area = "the installation"
	AreaEvents     Area = "events"
)

// Pod is the launcher Pod that counts, or nil.
func (s *Snapshot) Pod() *corev1.Pod {
	if len(s.Pods) == 0 {
		return nil
	}
	return &s.Pods[0]
}

// Template is the spec that an instance has or would get.
func (s *Snapshot) Template() *v1.VirtualMachineInstanceSpec {
	switch {
	case s.VMI != nil:
		return &s.VMI.Spec
	case s.VM != nil && s.VM.Spec.Template != nil:
		return &s.VM.Spec.Template.Spec
	}
	return &v1.VirtualMachineInstanceSpec{}
}

// Strategy is the VM's run strategy, or empty for an instance without a VM.
func (s *Snapshot) Strategy() v1.VirtualMachineRunStrategy {
	switch {
	case s.VM == nil:
		return ""
	case s.VM.Spec.RunStrategy != nil:
		return *s.VM.Spec.RunStrategy
	case s.VM.Spec.Running != nil && *s.VM.Spec.Running:
		return v1.RunStrategyAlways
	default:
		return v1.RunStrategyHalted
	}
}

// condition is an instance's condition, or an empty one.
func (s *Snapshot) condition(kind v1.VirtualMachineInstanceConditionType) v1.VirtualMachineInstanceCondition {
	if s.VMI != nil {
		for _, c := range s.VMI.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
	}
	return v1.VirtualMachineInstanceCondition{}
}

// vmCondition is a VM's condition, or an empty one.
func (s *Snapshot) vmCondition(kind v1.VirtualMachineConditionType) v1.VirtualMachineCondition {
	if s.VM != nil {
		for _, c := range s.VM.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
	}
	return v1.VirtualMachineCondition{}
}

// claims are the claims that the volumes name, each with its volume.
func (s *Snapshot) claims() (names, volumes []string) {
	for _, volume := range s.Template().Volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			names, volumes = append(names, volume.PersistentVolumeClaim.ClaimName), append(volumes, volume.Name)
		case volume.DataVolume != nil:
			names, volumes = append(names, volume.DataVolume.Name), append(volumes, volume.Name)
		}
	}
	return names, volumes
}

// eventOf is the newest event of an object of a kind with one of these reasons, or nil. Without reasons any warning counts.
func (s *Snapshot) eventOf(kind, name string, reasons ...string) *corev1.Event {
	for i := range s.Events {
		e := &s.Events[i]
		if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
			continue
		}
		if len(reasons) == 0 && e.Type == corev1.EventTypeWarning {
			return e
		}
		for _, reason := range reasons {
			if e.Reason == reason {
				return e
			}
		}
	}
	return nil
}

// eventTime is when an event was last seen. Events of the newer API have no lastTimestamp.
func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	default:
		return e.CreationTimestamp.Time
	}
}
