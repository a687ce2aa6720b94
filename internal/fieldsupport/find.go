// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package fieldsupport knows which fields of the API nothing implements yet. No such field is passed over in silence:
// admission warns about it, a VMI that would get something else than it asks for does not start, and
// docs/compatibility.md lists it. One table serves all three, and test/liveness holds every field of a VMI and of a
// KubeVirt object against it.
package fieldsupport

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/faults"
)

// Effect is what becomes of an object that sets a field.
type Effect int

const (
	// Warn means that the guest runs as asked: the field changes nothing that it could notice.
	Warn Effect = iota
	// Refuse means that starting would give something else than what was asked for, so that nothing starts.
	Refuse
	// Later means that the field works, but only from the next start of virt-controller on.
	Later
	// Fail means that the object is taken, and fails at once with the reason.
	Fail
)

// String says it of a field: it has no effect, it keeps the VM from starting.
func (e Effect) String() string {
	switch e {
	case Refuse:
		return "keeps the VM from starting"
	case Later:
		return "has an effect when virt-controller starts next"
	case Fail:
		return "makes it fail"
	default:
		return "has no effect"
	}
}

// ReasonNotImplemented is the reason of the condition and of the event of an object that does not start because of a
// field that nothing implements.
const ReasonNotImplemented = "FieldNotImplemented"

// Field is a field of the API that nothing implements yet.
type Field struct {
	// Path is the JSON path below the spec; [] stands for each element of a list.
	Path string
	// Values are those that are not implemented; none means all.
	Values []string
	// Effect is what becomes of an object that sets the field.
	Effect Effect
	// Reason ends the sentence that begins with the path and says what to do.
	Reason string
}

// Finding is a field of an object that is set and not implemented.
type Finding struct {
	// Path is where the field is in the object.
	Path *field.Path
	// Field is its row.
	Field *Field
}

// String is a sentence for a user.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s", f.Path, f.Field.Effect, f.Field.Reason)
}

// InVMI returns what a VMI asks for in vain. The path is that of its spec.
func InVMI(path *field.Path, spec *v1.VirtualMachineInstanceSpec) []Finding {
	return find(path, spec, VMI)
}

// InVM returns what a VM and its template ask for in vain. The path is that of its spec.
func InVM(path *field.Path, spec *v1.VirtualMachineSpec) []Finding {
	found := InVMOnly(path, spec)
	if spec.Template != nil {
		found = append(found, InVMI(path.Child("template", "spec"), &spec.Template.Spec)...)
	}
	return found
}

// InVMOnly returns what a VM asks for in vain outside of its template. The path is that of its spec.
func InVMOnly(path *field.Path, spec *v1.VirtualMachineSpec) []Finding { return find(path, spec, VM) }

// InKubeVirt returns what a KubeVirt object asks for in vain. The path is that of its spec.
func InKubeVirt(path *field.Path, spec *v1.KubeVirtSpec) []Finding { return find(path, spec, KubeVirt) }

// InMigration returns what a VirtualMachineInstanceMigration asks for in vain. The path is that of its spec.
func InMigration(path *field.Path, spec *v1.VirtualMachineInstanceMigrationSpec) []Finding {
	return find(path, spec, Migration)
}

// Refusals are the findings that keep an object from starting, or make it fail, as errors; none means that it may start.
func Refusals(findings []Finding) field.ErrorList {
	var errs field.ErrorList
	for _, f := range findings {
		if f.Field.Effect == Refuse || f.Field.Effect == Fail {
			errs = append(errs, field.Forbidden(f.Path, f.Field.Reason))
		}
	}
	return errs
}

// Sentences are the findings as warnings.
func Sentences(findings []Finding) []string {
	sentences := make([]string, 0, min(len(findings), faults.Most+1))
	for i, f := range findings {
		if i == faults.Most {
			return append(sentences, fmt.Sprintf("and %d more fields, which are not listed", len(findings)-i))
		}
		sentences = append(sentences, f.String())
	}
	return sentences
}

// find returns the rows of a table that an object sets. An object that cannot be converted sets none: the API server
// has decoded it before.
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

// setPaths follows steps down a tree and returns where they end in a value that is set.
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

// isSet says that a value asks for something: false, zero and the empty string do not, nor does a device that is not
// enabled; an empty object does, since that is how a choice without options is written. A row may be about false alone.
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
