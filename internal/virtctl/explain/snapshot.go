// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package explain implements the command explain, which explains why a VM does not run or what it waits for.
//
// Gather reads a Snapshot from the cluster. Explain is a pure function from a Snapshot to a Report.
package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

// Snapshot contains a VM and the related objects at one time. An object that is nil does not exist, or its area is in
// Hidden.
type Snapshot struct {
	Now             time.Time
	Namespace, Name string
	// Program is how the user calls virtctl.
	Program string

	VM  *v1.VirtualMachine
	VMI *v1.VirtualMachineInstance
	// Pods are the instance's launcher Pods, the newest first.
	Pods []corev1.Pod
	// Migrations are those of the instance, the newest first.
	Migrations []v1.VirtualMachineInstanceMigration
	// Claims are those of the VM's volumes. A nil claim does not exist.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Classes are the storage classes by name.
	Classes      map[string]Class
	DefaultClass string
	// Node is the instance's node, Agent the Pod of virt-handler there.
	Node  *corev1.Node
	Agent *corev1.Pod
	// Install is the state of the components.
	Install Install
	// Events are those of all these objects, the newest first.
	Events []corev1.Event
	// Hidden are the areas that the user may not read.
	Hidden map[Area]bool
}

// Class is a storage class.
type Class struct{ WaitsForConsumer bool }

// Install is the state of the components in the cluster.
type Install struct {
	// KubeVirt is nil if the cluster has no such object.
	KubeVirt *v1.KubeVirt
	// Namespace is that of the KubeVirt object.
	Namespace string
	// Controller and API are the numbers of ready Pods of virt-controller and virt-api; negative if not known.
	Controller, API int
}

// Area is a part of the cluster that a user may lack the permission to read.
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

// Pod returns the newest launcher Pod, or nil.
func (s *Snapshot) Pod() *corev1.Pod {
	if len(s.Pods) == 0 {
		return nil
	}
	return &s.Pods[0]
}

// Template returns the instance's spec, or that of the VM's template.
func (s *Snapshot) Template() *v1.VirtualMachineInstanceSpec {
	switch {
	case s.VMI != nil:
		return &s.VMI.Spec
	case s.VM != nil && s.VM.Spec.Template != nil:
		return &s.VM.Spec.Template.Spec
	}
	return &v1.VirtualMachineInstanceSpec{}
}

// Strategy returns the VM's run strategy, or "" for an instance without a VM.
func (s *Snapshot) Strategy() v1.VirtualMachineRunStrategy {
	if s.VM == nil {
		return ""
	}
	strategy, _ := s.VM.RunStrategy() // Admission rejects a VM for which this is an error.
	return strategy
}

// condition returns a condition of the instance, or an empty one.
func (s *Snapshot) condition(kind v1.VirtualMachineInstanceConditionType) v1.VirtualMachineInstanceCondition {
	if s.VMI == nil {
		return v1.VirtualMachineInstanceCondition{}
	}
	return ptr.Deref(conditions.Find(s.VMI.Status.Conditions, kind), v1.VirtualMachineInstanceCondition{})
}

// vmCondition returns a condition of the VM, or an empty one.
func (s *Snapshot) vmCondition(kind v1.VirtualMachineConditionType) v1.VirtualMachineCondition {
	if s.VM == nil {
		return v1.VirtualMachineCondition{}
	}
	return ptr.Deref(conditions.Find(s.VM.Status.Conditions, kind), v1.VirtualMachineCondition{})
}

// claims returns the names of the volumes' claims, each with its volume.
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

// eventOf returns the newest event of an object with one of the reasons, or nil. Without reasons it returns the newest
// warning.
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
