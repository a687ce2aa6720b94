// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// applyTemplate applies the differences between two renderings of a VM: base, from which it was created, and next.
// Changes by users, such as a stopped run strategy, a hotplugged volume or a label, stay, unless the template has
// changed the same field.
func applyTemplate(vm *v1.VirtualMachine, base, next rendered) error {
	merged := v1.VirtualMachineSpec{}
	if err := mergeInto(&merged, base.spec, next.spec, vm.Spec); err != nil {
		return fmt.Errorf("merge the spec of VirtualMachine %s: %w", vm.Name, err)
	}
	vm.Labels = mergeStrings(base.labels, next.labels, vm.Labels)
	vm.Annotations = mergeStrings(base.annotations, next.annotations, vm.Annotations)

	// Both fields express the run strategy. A user may have set the other one than the template.
	merged.Running, merged.RunStrategy = vm.Spec.Running, vm.Spec.RunStrategy
	if !equality.Semantic.DeepEqual(base.spec.Running, next.spec.Running) ||
		!equality.Semantic.DeepEqual(base.spec.RunStrategy, next.spec.RunStrategy) {
		merged.Running, merged.RunStrategy = next.spec.Running, next.spec.RunStrategy
	}
	keepIdentity(&merged, &vm.Spec)
	vm.Spec = merged
	return nil
}

// keepIdentity keeps the firmware UUID and the serial number of a VM: software in the guest may be bound to them.
func keepIdentity(merged, current *v1.VirtualMachineSpec) {
	if current.Template == nil || merged.Template == nil || current.Template.Spec.Domain.Firmware == nil {
		return
	}
	firmware := current.Template.Spec.Domain.Firmware
	if firmware.UUID == "" && firmware.Serial == "" {
		return
	}
	if merged.Template.Spec.Domain.Firmware == nil {
		merged.Template.Spec.Domain.Firmware = &v1.Firmware{}
	}
	mergedFirmware := merged.Template.Spec.Domain.Firmware
	if firmware.UUID != "" {
		mergedFirmware.UUID = firmware.UUID
	}
	if firmware.Serial != "" {
		mergedFirmware.Serial = firmware.Serial
	}
}

func mergeStrings(base, next, current map[string]string) map[string]string {
	merged := map[string]string{}
	for key, value := range current {
		if _, inBase := base[key]; !inBase {
			merged[key] = value
		}
	}
	for key, value := range next {
		baseValue, inBase := base[key]
		currentValue, inCurrent := current[key]
		switch {
		case !inBase || baseValue != value:
			merged[key] = value
		case inCurrent:
			merged[key] = currentValue
		}
	}
	return merged
}

// mergeInto merges three values of one type by their JSON fields.
func mergeInto[T any](out *T, base, next, current T) error {
	var values [3]any
	for i, value := range []T{base, next, current} {
		raw, err := json.Marshal(value)
		if err != nil {
			return err
		}
		// Numbers are decoded as the API server does: a large one that became a float could not be decoded again.
		if err := utiljson.Unmarshal(raw, &values[i]); err != nil {
			return err
		}
	}
	merged, _ := merge(values[0], values[1], values[2])
	raw, err := json.Marshal(merged)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

// merge applies the changes from base to next to current. nil is an absent value. The second result is false if the
// merged value is absent. Objects are merged by field, and lists of named objects by name; other values are replaced as
// a whole.
func merge(base, next, current any) (any, bool) {
	if equality.Semantic.DeepEqual(base, next) {
		return current, current != nil
	}
	if b, n, c, ok := asObjects(base, next, current); ok {
		merged := mergeObjects(b, n, c)
		return merged, next != nil || len(merged) > 0
	}
	if b, n, c, ok := asNamedLists(base, next, current); ok {
		merged := mergeNamed(b, n, c)
		return merged, len(merged) > 0
	}
	return next, next != nil
}

func mergeObjects(base, next, current map[string]any) map[string]any {
	merged := map[string]any{}
	for _, keys := range []map[string]any{next, current} {
		for key := range keys {
			if value, present := merge(base[key], next[key], current[key]); present {
				merged[key] = value
			}
		}
	}
	return merged
}

// mergeNamed merges lists of named objects. The result has the order of next, followed by the items that only current
// has. Items that base has and next does not are removed.
func mergeNamed(base, next, current []any) []any {
	b, n, c := byName(base), byName(next), byName(current)
	var merged []any
	for _, item := range next {
		name := nameOf(item)
		if value, present := merge(b[name], item, c[name]); present {
			merged = append(merged, value)
		}
	}
	for _, item := range current {
		name := nameOf(item)
		if b[name] == nil && n[name] == nil {
			merged = append(merged, item)
		}
	}
	return merged
}

// asObjects returns the values as objects if each of them is an object or absent.
func asObjects(base, next, current any) (b, n, c map[string]any, ok bool) {
	var are [3]bool
	b, are[0] = as[map[string]any](base)
	n, are[1] = as[map[string]any](next)
	c, are[2] = as[map[string]any](current)
	return b, n, c, are == [3]bool{true, true, true}
}

// asNamedLists returns the values as lists if each of them is a list or absent, and each item has a name.
func asNamedLists(base, next, current any) (b, n, c []any, ok bool) {
	var are [3]bool
	b, are[0] = as[[]any](base)
	n, are[1] = as[[]any](next)
	c, are[2] = as[[]any](current)
	if are != [3]bool{true, true, true} {
		return nil, nil, nil, false
	}
	for _, list := range [][]any{b, n, c} {
		if len(byName(list)) != len(list) {
			return nil, nil, nil, false
		}
	}
	return b, n, c, true
}

func as[T any](value any) (T, bool) {
	typed, ok := value.(T)
	return typed, ok || value == nil
}

// byName returns the items that have a name, by name.
func byName(list []any) map[string]any {
	items := make(map[string]any, len(list))
	for _, item := range list {
		if name := nameOf(item); name != "" {
			items[name] = item
		}
	}
	return items
}

// nameOf returns the name of an item: its field name, or that of its metadata.
func nameOf(item any) string {
	object, ok := item.(map[string]any)
	if !ok {
		return ""
	}
	if name, ok := object["name"].(string); ok {
		return name
	}
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}
