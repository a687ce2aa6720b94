// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
)

// Limits of filters. A filter is a regular expression, which needs memory when it is compiled, and time for each
// character of a key.
const (
	// MaxFilters is how many filters a list may have.
	MaxFilters = 256
	// MaxFilter is how long a filter may be, in bytes. Keys of labels and annotations have 317 characters at most.
	MaxFilter = 512
	// maxInstructions is how many instructions the expressions of a list may have after compilation. A short expression
	// with repetitions can have millions.
	maxInstructions = 8192
	// maxKeys is the maximum total size, in bytes, of the keys to which a list is applied.
	maxKeys = 64 << 10
)

// operation is a JSON patch operation.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Paths of what is patched.
const (
	pathInterface = "/spec/template/spec/domain/devices/interfaces/%d/macAddress"
	pathFirmware  = "/spec/template/spec/domain/firmware"
	pathMetadata  = "/metadata/annotations/"
)

// patches returns the JSON patch operations that turn the VM in a snapshot into the target, which shares neither MAC
// addresses nor the identity of its firmware with the source. The user's patches are last.
func patches(
	vmClone *v1beta1.VirtualMachineClone, source *snapshotv1beta1.VirtualMachine, target string,
) ([]string, error) {
	template, spec := source.Spec.Template, &vmClone.Spec
	operations := slices.Concat(
		addresses(template.Spec.Domain.Devices.Interfaces, spec.NewMacAddresses),
		identity(template.Spec.Domain.Firmware, spec.NewSMBiosSerial, target == source.Name),
	)
	annotations := maps.Clone(source.Annotations)
	delete(annotations, snapshot.LastRestoreAnnotation) // The restore sets it on the target.
	delete(annotations, firmware.RecordAnnotation)      // The restore or identity removes it.
	for _, list := range []struct {
		path    string
		keys    map[string]string
		filters []string
	}{
		{"/metadata/labels/", source.Labels, spec.LabelFilters},
		{pathMetadata, annotations, spec.AnnotationFilters},
		{"/spec/template/metadata/labels/", template.ObjectMeta.Labels, spec.Template.LabelFilters},
		{"/spec/template/metadata/annotations/", template.ObjectMeta.Annotations, spec.Template.AnnotationFilters},
	} {
		removed, err := removals(list.path, list.keys, list.filters)
		if err != nil {
			return nil, err
		}
		operations = append(operations, removed...)
	}
	out := make([]string, 0, len(operations)+len(spec.Patches))
	for i := range operations {
		text, err := json.Marshal(operations[i])
		if err != nil {
			return nil, fmt.Errorf("encode the patch of %s: %w", operations[i].Path, err)
		}
		out = append(out, string(text))
	}
	return append(out, spec.Patches...), nil
}

// addresses returns the operations that set the chosen MAC addresses and remove the others. An interface without a MAC
// address gets one when the VM starts.
func addresses(interfaces []v1.Interface, chosen map[string]string) []operation {
	var out []operation
	for i := range interfaces {
		if address := chosen[interfaces[i].Name]; address != interfaces[i].MacAddress {
			out = append(out, operation{"add", fmt.Sprintf(pathInterface, i), address})
		}
	}
	return out
}

// identity returns the operations that remove UUID and serial number, and set the requested serial number, so that the
// target gets its own. KubeVirt ignores a requested serial number if the source's template has no firmware. keepsName
// reports whether the target has the name of the source, which was deleted: the restore gives it the record of the
// source's identity, unlike a target with another name.
func identity(source *v1.Firmware, serial *string, keepsName bool) []operation {
	var out []operation
	if keepsName {
		out = append(out, operation{Op: "remove", Path: pathMetadata + escape.Replace(firmware.RecordAnnotation)})
	}
	if source == nil && serial == nil {
		return out
	}
	changed := v1.Firmware{}
	if source != nil {
		changed = *source.DeepCopy()
	}
	changed.UUID, changed.Serial = "", ""
	if serial != nil {
		changed.Serial = *serial
	}
	return append(out, operation{"add", pathFirmware, changed})
}

// removals returns the operations that remove the keys that filters do not keep.
func removals(path string, keys map[string]string, filters []string) ([]operation, error) {
	if filters == nil {
		return nil, nil
	}
	keeps, excludes, err := compile(filters)
	if err != nil {
		return nil, err
	}
	length := 0
	for key := range keys {
		length += len(key)
	}
	if length > maxKeys {
		return nil, fmt.Errorf("the keys at %s have %d bytes: filters are possible for at most %d", path, length, maxKeys)
	}
	matches := func(list []*regexp.Regexp, key string) bool {
		return slices.ContainsFunc(list, func(filter *regexp.Regexp) bool { return filter.MatchString(key) })
	}
	var out []operation
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !matches(keeps, key) || matches(excludes, key) {
			out = append(out, operation{Op: "remove", Path: path + escape.Replace(key)})
		}
	}
	return out, nil
}

// escape escapes a key in a JSON pointer. Source: RFC 6901, section 3.
var escape = strings.NewReplacer("~", "~0", "/", "~1")

// CheckFilters returns an error if a list of filters needs more memory or time than permitted.
func CheckFilters(filters []string) error {
	if len(filters) > MaxFilters {
		return fmt.Errorf("%d filters: at most %d are possible", len(filters), MaxFilters)
	}
	instructions := 0
	for _, filter := range filters {
		if len(filter) > MaxFilter {
			return fmt.Errorf("a filter has %d bytes: at most %d are possible", len(filter), MaxFilter)
		}
		if parsed, err := syntax.Parse(expressionOf(filter), syntax.Perl); err == nil {
			instructions += sizeOf(parsed)
		}
		if instructions > maxInstructions {
			return fmt.Errorf("the filters are too complex, because of %s: remove repetitions like {100}", filter)
		}
	}
	return nil
}

// expressionOf returns the regular expression of a filter. The filter * matches all keys.
func expressionOf(filter string) string {
	text := strings.TrimPrefix(filter, "!")
	if text == "*" {
		return ".*"
	}
	return text
}

// sizeOf returns the approximate number of instructions to which a regular expression is compiled, without compiling
// it.
func sizeOf(expression *syntax.Regexp) int {
	size := 1 + len(expression.Rune)
	for _, sub := range expression.Sub {
		size += sizeOf(sub)
	}
	if expression.Op == syntax.OpRepeat {
		size *= max(expression.Min, expression.Max, 1)
	}
	return min(size, maxInstructions+1)
}

// compile returns the filters that keep keys, and those that exclude keys. As in KubeVirt, a filter is a regular
// expression that matches anywhere in a key, except that * matches all keys. A filter that is not a valid regular
// expression matches nothing.
func compile(filters []string) (keeps, excludes []*regexp.Regexp, err error) {
	if err := CheckFilters(filters); err != nil {
		return nil, nil, err
	}
	for _, filter := range filters {
		text := expressionOf(filter)
		expression, err := regexp.Compile(text)
		switch {
		case err != nil || text == "":
		case strings.HasPrefix(filter, "!"):
			excludes = append(excludes, expression)
		default:
			keeps = append(keeps, expression)
		}
	}
	return keeps, excludes, nil
}
