// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"encoding/json"
	"fmt"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// parsePatches returns the operations of a restore, or an error if one is not a JSON patch of an element under /spec/. KubeVirt
// splits them at commas and colons, and refuses a MAC address.
func parsePatches(patches []string) (jsonpatch.Patch, error) {
	out := make(jsonpatch.Patch, 0, len(patches))
	for _, text := range patches {
		var operation jsonpatch.Operation
		if err := json.Unmarshal([]byte(text), &operation); err != nil {
			return nil, fmt.Errorf("patch is not valid JSON (%s): %w", text, err)
		}
		path, err := operation.Path()
		if err != nil {
			return nil, fmt.Errorf("patch %s has no path: %w", text, err)
		}
		paths := []string{path}
		if operation["from"] != nil {
			from, err := operation.From()
			if err != nil {
				return nil, fmt.Errorf("patch %s has no valid from: %w", text, err)
			}
			paths = append(paths, from)
		}
		for _, path := range paths {
			if !strings.HasPrefix(path, "/spec/") {
				return nil, fmt.Errorf("patching is valid only for elements under /spec/ only: %s", text)
			}
		}
		out = append(out, operation)
	}
	return out, nil
}

// patched returns a VM with the patches applied.
func patched(vm *v1.VirtualMachine, patches []string) (*v1.VirtualMachine, error) {
	operations, err := parsePatches(patches)
	if err != nil || len(operations) == 0 {
		return vm, err
	}
	raw, err := json.Marshal(vm)
	if err != nil {
		return nil, fmt.Errorf("encode VirtualMachine %s: %w", vm.Name, err)
	}
	if raw, err = operations.Apply(raw); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	out := &v1.VirtualMachine{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	return out, nil
}
