// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/quantity"
)

// patchable are the beginnings of the paths that patches may change, as in KubeVirt.
var patchable = []string{"/spec/", "/metadata/labels/", "/metadata/annotations/"}

// maxPatched is the size of a patched VM in bytes: the API server accepts no larger object. An operation that copies can double it.
const maxPatched = 3 << 19

// maxShown is how many characters of a patch an error contains.
const maxShown = 256

// CheckPatch returns an error unless a text is a JSON patch operation for an element of a VM that a restore may change. KubeVirt
// splits the text at commas and colons, and refuses a MAC address.
func CheckPatch(text string) error {
	_, err := parsePatch(text)
	return err
}

func parsePatch(text string) (jsonpatch.Operation, error) {
	shown := printable.Text(text, maxShown)
	var operation jsonpatch.Operation
	if err := json.Unmarshal([]byte(text), &operation); err != nil {
		return nil, fmt.Errorf("patch is not valid JSON (%s): %w", shown, err)
	}
	path, err := operation.Path()
	if err != nil {
		return nil, fmt.Errorf("patch %s has no path: %w", shown, err)
	}
	paths := []string{path}
	if operation["from"] != nil {
		from, err := operation.From()
		if err != nil {
			return nil, fmt.Errorf("patch %s has no valid from: %w", shown, err)
		}
		paths = append(paths, from)
	}
	for _, path := range paths {
		if !slices.ContainsFunc(patchable, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
			return nil, fmt.Errorf("patching is valid only for elements under /spec/ only: %s", shown)
		}
	}
	return operation, nil
}

// patched returns a VM with the patches applied.
func patched(vm *v1.VirtualMachine, patches []string) (*v1.VirtualMachine, error) {
	if len(patches) == 0 {
		return vm, nil
	}
	operations := make(jsonpatch.Patch, 0, len(patches))
	for _, text := range patches {
		operation, err := parsePatch(text)
		if err != nil {
			return nil, err
		}
		operations = append(operations, operation)
	}
	raw, err := json.Marshal(vm)
	if err != nil {
		return nil, fmt.Errorf("encode VirtualMachine %s: %w", vm.Name, err)
	}
	if raw, err = applyBounded(raw, operations); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	out := &v1.VirtualMachine{}
	// The schema of a restore does not see what is in the texts.
	if err := quantity.Check(raw, out); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	return out, nil
}

// applyBounded applies operations up to and including the next copy at a time, and then checks the size.
func applyBounded(raw []byte, operations jsonpatch.Patch) ([]byte, error) {
	for len(operations) > 0 {
		next := len(operations)
		if at := slices.IndexFunc(operations, func(o jsonpatch.Operation) bool { return o.Kind() == "copy" }); at >= 0 {
			next = at + 1
		}
		var err error
		if raw, err = operations[:next].Apply(raw); err != nil {
			return nil, err
		}
		if len(raw) > maxPatched {
			return nil, fmt.Errorf("the patched object has more than %d bytes", maxPatched)
		}
		operations = operations[next:]
	}
	return raw, nil
}
