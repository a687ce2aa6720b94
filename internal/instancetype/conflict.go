// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bases of the paths of conflicts.
const (
	inVM  = "spec.template.spec"
	inVMI = "spec"
)

// Conflict is a field that both a VM's template and its instance type set.
type Conflict struct {
	// Path is the field below the spec of the VMI, such as domain.cpu.sockets, or annotations.<key>. It is the path in KubeVirt's message,
	// which is not always that of the field.
	Path string
	// Annotation reports whether it is an annotation, whose path has no base.
	Annotation bool
}

// Conflicts are all conflicts of a template with an instance type, in the order of the rows.
type Conflicts []Conflict

// conflict returns a conflict with a path below the spec of the VMI if the condition is true.
func conflict(condition bool, path string) Conflicts {
	if !condition {
		return nil
	}
	return Conflicts{{Path: path}}
}

// Paths returns the full paths of the conflicts. base is the path of the VMI's spec, such as spec.template.spec in a VM.
func (c Conflicts) Paths(base string) []string {
	paths := make([]string, 0, len(c))
	for _, conflict := range c {
		path := base + "." + conflict.Path
		if conflict.Annotation {
			path = conflict.Path
		}
		paths = append(paths, path)
	}
	return paths
}

// conflictFormat is KubeVirt's message for the author of a VM.
const conflictFormat = "VM field(s) %s conflicts with selected instance type"

// Admission returns an error for each field of a VM, with KubeVirt's message.
func (c Conflicts) Admission() field.ErrorList {
	errs := make(field.ErrorList, 0, len(c))
	for _, path := range c.Paths(inVM) {
		errs = append(errs, &field.Error{
			Type: field.ErrorTypeInvalid, Field: path, BadValue: field.OmitValueType{}, Detail: fmt.Sprintf(conflictFormat, path),
		})
	}
	return errs
}

// ErrStore returns one error with KubeVirt's message for a VM whose instance type is not stored in a ControllerRevision because of
// conflicts, or nil if there are none.
func (c Conflicts) ErrStore() error {
	if len(c) == 0 {
		return nil
	}
	return fmt.Errorf(conflictFormat, strings.Join(c.Paths(inVM), ", "))
}

// ErrVM returns one error with KubeVirt's message for a running VM whose template is compared with its VMI, or nil if there are no
// conflicts.
func (c Conflicts) ErrVM() error { return c.inFields("VM", inVM) }

// ErrVMI returns one error with KubeVirt's message for a VMI that cannot be created, or nil if there are no conflicts.
func (c Conflicts) ErrVMI() error { return c.inFields("VMI", inVMI) }

func (c Conflicts) inFields(object, base string) error {
	if len(c) == 0 {
		return nil
	}
	return fmt.Errorf("%s conflicts with instancetype spec in fields: [%s]", object, strings.Join(c.Paths(base), ", "))
}
