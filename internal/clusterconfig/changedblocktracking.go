// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// GateIncrementalBackup permits backups, and the tracking of changed blocks.
const GateIncrementalBackup = "IncrementalBackup"

// TrackedVMs selects VMs by their labels or by those of their namespaces. Nil selects nothing.
type TrackedVMs struct {
	// VirtualMachines selects by the labels of a VM, Namespaces by those of its namespace.
	VirtualMachines, Namespaces labels.Selector
}

// None reports whether no VM is selected.
func (t TrackedVMs) None() bool { return t.VirtualMachines == nil && t.Namespaces == nil }

// SelectsVM reports whether a VM with these labels is selected, whatever its namespace.
func (t TrackedVMs) SelectsVM(vm map[string]string) bool {
	return t.VirtualMachines != nil && t.VirtualMachines.Matches(labels.Set(vm))
}

// SelectsNamespace reports whether all VMs of a namespace with these labels are selected.
func (t TrackedVMs) SelectsNamespace(namespace map[string]string) bool {
	return t.Namespaces != nil && t.Namespaces.Matches(labels.Set(namespace))
}

func (p *parser) changedBlockTracking(s *v1.ChangedBlockTrackingSelectors, path *field.Path) {
	if s == nil {
		return
	}
	p.config.ChangedBlockTracking = TrackedVMs{
		VirtualMachines: p.selector(s.VirtualMachineLabelSelector, path.Child("virtualMachineLabelSelector")),
		Namespaces:      p.selector(s.NamespaceLabelSelector, path.Child("namespaceLabelSelector")),
	}
}

// selector returns a selector, or nil if there is none or it is invalid.
func (p *parser) selector(s *metav1.LabelSelector, path *field.Path) labels.Selector {
	if s == nil {
		return nil
	}
	if errs := metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path); len(errs) > 0 {
		p.errs = append(p.errs, errs...)
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		p.errs = append(p.errs, field.Invalid(path, s, err.Error()))
		return nil
	}
	return selector
}
