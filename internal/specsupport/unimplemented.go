// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Effect is what happens to an object that sets an unimplemented field.
type Effect int

const (
	// Warn ignores the field. The guest cannot notice the difference.
	Warn Effect = iota
	// Refuse keeps the VMI from starting, because its guest would differ from its spec.
	Refuse
	// Fail admits the object, which fails at once with the reason.
	Fail
)

// String returns the predicate of a sentence whose subject is a field.
func (e Effect) String() string {
	switch e {
	case Refuse:
		return "keeps the VM from starting"
	case Fail:
		return "makes it fail"
	default:
		return "has no effect"
	}
}

// ReasonNotImplemented is the reason of the condition and of the event of an object that does not start because it sets an
// unimplemented field.
const ReasonNotImplemented = "FieldNotImplemented"

// Field is a row of a table: a field of the API, or an annotation, that is not implemented yet. Admission, the controllers and
// docs/compatibility.md use the same tables, and test/liveness fails for a field of a VMI or of a KubeVirt object that has
// neither a row nor an effect.
type Field struct {
	// Path is the JSON path below the spec, with [] for each element of a list; or the key of an annotation.
	Path string
	// Values are the unimplemented values. Empty means every value.
	Values []string
	// Effect is what happens to an object that sets the field.
	Effect Effect
	// Reason is the end of a sentence that starts with the path. It says why, and what to use instead.
	Reason string
}

// Finding is an unimplemented field that an object sets.
type Finding struct {
	// Path is the path of the field in the object.
	Path *field.Path
	// Field is the row of the table.
	Field *Field
}

// String returns a warning for the user.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s", f.Path, f.Field.Effect, f.Field.Reason)
}

// UnimplementedInVMI returns the unimplemented fields that the spec of a VMI sets. path is that of the spec.
func UnimplementedInVMI(path *field.Path, spec *v1.VirtualMachineInstanceSpec) []Finding {
	return find(path, spec, VMIFields)
}

// UnimplementedInVM returns the unimplemented fields that the spec of a VM sets outside its template. path is that of the spec.
func UnimplementedInVM(path *field.Path, spec *v1.VirtualMachineSpec) []Finding {
	return find(path, spec, VMFields)
}

// UnimplementedInKubeVirt returns the unimplemented fields that the spec of a KubeVirt object sets. path is that of the spec.
func UnimplementedInKubeVirt(path *field.Path, spec *v1.KubeVirtSpec) []Finding {
	return find(path, spec, KubeVirtFields)
}

// UnimplementedInMigration returns the unimplemented fields that the spec of a migration sets. path is that of the spec.
func UnimplementedInMigration(path *field.Path, spec *v1.VirtualMachineInstanceMigrationSpec) []Finding {
	return find(path, spec, MigrationFields)
}

// Refusals returns the findings that keep an object from starting, or make it fail, as errors.
func Refusals(findings []Finding) field.ErrorList {
	var errs field.ErrorList
	for _, f := range findings {
		if f.Field.Effect == Refuse || f.Field.Effect == Fail {
			errs = append(errs, field.Forbidden(f.Path, f.Field.Reason))
		}
	}
	return errs
}

// Warnings returns one warning for each finding. Their number is capped.
func Warnings(findings []Finding) []string {
	warnings := make([]string, 0, min(len(findings), MaxErrors+1))
	for i, f := range findings {
		if i == MaxErrors {
			return append(warnings, fmt.Sprintf("and %d more fields, which are not listed", len(findings)-i))
		}
		warnings = append(warnings, f.String())
	}
	return warnings
}

// find returns the rows of a table that an object sets. It ignores conversion errors: the API server has already decoded the
// object.
func find(base *field.Path, object any, table []Field) []Finding {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil
	}
	var found []Finding
	for i := range table {
		row := &table[i]
		for _, p := range setPaths(base, tree, strings.Split(row.Path, "."), row.Values) {
			found = append(found, Finding{p, row})
		}
	}
	return found
}

// setPaths follows the steps of a row's path through node and returns the path of each value that is set.
func setPaths(at *field.Path, node any, steps, values []string) []*field.Path {
	if len(steps) == 0 {
		if isSet(node, values) {
			return []*field.Path{at}
		}
		return nil
	}
	tree, ok := node.(map[string]any)
	if !ok {
		return nil
	}
	name, each := strings.CutSuffix(steps[0], "[]")
	child, ok := tree[name]
	if !ok {
		return nil
	}
	if !each {
		return setPaths(at.Child(name), child, steps[1:], values)
	}
	list, _ := child.([]any) // a nil list has no elements
	var found []*field.Path
	for i := range list {
		found = append(found, setPaths(at.Child(name).Index(i), list[i], steps[1:], values)...)
	}
	return found
}

// isSet reports whether a value enables a field. False, zero, the empty string and an object with "enabled: false" do not. An
// empty object does: it is how the API selects an alternative that has no options. false counts if a row names it as its value.
func isSet(node any, values []string) bool {
	switch v := node.(type) {
	case nil:
		return false
	case bool:
		return v && len(values) == 0 || slices.Contains(values, strconv.FormatBool(v))
	case string:
		return v != "" && (len(values) == 0 || slices.Contains(values, v))
	case int64:
		return v != 0
	case float64:
		return v != 0
	case []any:
		return len(v) > 0
	case map[string]any:
		return v["enabled"] != false
	default:
		return true
	}
}
