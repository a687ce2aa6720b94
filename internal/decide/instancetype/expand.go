// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Expand returns a copy of a VM's template with an instance type and a preference applied, and the conflicts: the
// fields that both the template and the instance type set. If there are conflicts, nothing is applied. The instance
// type and the preference may be nil; if both are, the copy equals the template.
//
// A preference is applied after the instance type, and after the devices that the template implies were added: a disk
// for each volume without a device, the default network interface and the default input device. If there is no
// preference, the defaults of the VMI add them.
//
// The comments of the rows say where Vireo differs from KubeVirt. If the CPUs of an instance type cannot be spread as
// the preference requires, CheckTopology returns an error, and Expand makes each CPU a socket.
func Expand(
	template *v1.VirtualMachineInstanceTemplateSpec, instancetype *v1beta1.VirtualMachineInstancetypeSpec,
	preference *v1beta1.VirtualMachinePreferenceSpec,
) (*v1.VirtualMachineInstanceTemplateSpec, Conflicts) {
	e := &expansion{template: template.DeepCopy(), preference: complete(preference)}
	e.spec = &e.template.Spec
	if instancetype != nil {
		e.instancetype = instancetype.DeepCopy()
		conflicts := make(Conflicts, 0, len(instancetypeRows))
		for _, row := range instancetypeRows {
			conflicts = append(conflicts, row.conflicts(e)...)
		}
		if len(conflicts) > 0 {
			return e.template, conflicts
		}
		for _, row := range instancetypeRows {
			row.apply(e)
		}
	}
	if preference != nil {
		for _, row := range preferenceRows {
			row.apply(e)
		}
	}
	return e.template, nil
}

// expansion is one call of Expand. All of it is a copy, so that a row can move a value of an instance type or a
// preference into the template. A value for more than one device is copied for each.
type expansion struct {
	template *v1.VirtualMachineInstanceTemplateSpec
	// spec is template.Spec.
	spec         *v1.VirtualMachineInstanceSpec
	instancetype *v1beta1.VirtualMachineInstancetypeSpec
	// preference has no nil members. It is empty if there is no preference.
	preference preference
	// preferredEFI reports whether firmware.preferredEfi was applied.
	preferredEFI bool
}

// preference is a preference whose members are not nil.
type preference struct {
	*v1beta1.VirtualMachinePreferenceSpec
	clock    v1beta1.ClockPreferences
	cpu      v1beta1.CPUPreferences
	devices  v1beta1.DevicePreferences
	features v1beta1.FeaturePreferences
	firmware v1beta1.FirmwarePreferences
	machine  v1beta1.MachinePreferences
}

// complete returns a copy of a preference, which may be nil.
func complete(spec *v1beta1.VirtualMachinePreferenceSpec) preference {
	spec = spec.DeepCopy()
	if spec == nil {
		spec = &v1beta1.VirtualMachinePreferenceSpec{}
	}
	return preference{
		VirtualMachinePreferenceSpec: spec,
		clock:                        ptr.Deref(spec.Clock, v1beta1.ClockPreferences{}),
		cpu:                          ptr.Deref(spec.CPU, v1beta1.CPUPreferences{}),
		devices:                      ptr.Deref(spec.Devices, v1beta1.DevicePreferences{}),
		features:                     ptr.Deref(spec.Features, v1beta1.FeaturePreferences{}),
		firmware:                     ptr.Deref(spec.Firmware, v1beta1.FirmwarePreferences{}),
		machine:                      ptr.Deref(spec.Machine, v1beta1.MachinePreferences{}),
	}
}

// row describes how one field of an instance type or of a preference is applied.
type row struct {
	// path is the field below the spec of the instance type or preference.
	path string
	// conflicts returns the fields of the template that conflict with the field. Only rows of an instance type have it.
	conflicts func(*expansion) Conflicts
	apply     func(*expansion)
}

// Fields returns the fields of instance types and of preferences that Expand applies, as paths below the spec. A path
// includes all fields below it, unless the result contains paths below it.
func Fields() (instancetypes, preferences []string) {
	for _, row := range instancetypeRows {
		instancetypes = append(instancetypes, row.path)
	}
	for _, row := range preferenceRows {
		preferences = append(preferences, row.path)
	}
	return instancetypes, preferences
}

// fill sets a pointer that is nil.
func fill[T any](field **T, value *T) {
	if *field == nil {
		*field = value
	}
}

// fillEmpty sets a field that has its zero value.
func fillEmpty[T comparable](field *T, value T) {
	var empty T
	if *field == empty {
		*field = value
	}
}

// need returns the pointer in a field. It first sets a nil pointer to a new value.
func need[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}

// Bases of the paths of conflicts.
const (
	inVM  = "spec.template.spec"
	inVMI = "spec"
)

// Conflict is a field that both a VM's template and its instance type set.
type Conflict struct {
	// Path is the field below the spec of the VMI, such as domain.cpu.sockets, or annotations.<key>. It is the path in
	// KubeVirt's message, which is not always that of the field.
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

// Paths returns the full paths of the conflicts. base is the path of the VMI's spec, such as spec.template.spec in a
// VM.
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
			Type: field.ErrorTypeInvalid, Field: path, BadValue: field.OmitValueType{},
			Detail: fmt.Sprintf(conflictFormat, path),
		})
	}
	return errs
}

// ErrStore returns one error with KubeVirt's message for a VM whose instance type is not stored in a ControllerRevision
// because of conflicts, or nil if there are none.
func (c Conflicts) ErrStore() error {
	if len(c) == 0 {
		return nil
	}
	return fmt.Errorf(conflictFormat, strings.Join(c.Paths(inVM), ", "))
}

// ErrVM returns one error with KubeVirt's message for a running VM whose template is compared with its VMI, or nil if
// there are no conflicts.
func (c Conflicts) ErrVM() error { return c.inFields("VM", inVM) }

// ErrVMI returns one error with KubeVirt's message for a VMI that cannot be created, or nil if there are no conflicts.
func (c Conflicts) ErrVMI() error { return c.inFields("VMI", inVMI) }

func (c Conflicts) inFields(object, base string) error {
	if len(c) == 0 {
		return nil
	}
	return fmt.Errorf("%s conflicts with instancetype spec in fields: [%s]", object, strings.Join(c.Paths(base), ", "))
}
