// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kjson "sigs.k8s.io/json"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/quantity"
)

// patchable contains the prefixes of the paths that patches may change, as in KubeVirt.
var patchable = []string{"/spec/", "/metadata/labels/", "/metadata/annotations/"}

// maxPatched is the maximum size of a patched VM in bytes, which is the API server's limit for an object. A copy operation can double the
// size.
const maxPatched = 3 << 19

// Limits of the operations in all patches of a restore. The VM is decoded and encoded again for each copy.
const (
	maxOperations = 1024
	maxCopies     = 16
)

// maxShown is how many characters of a patch an error contains.
const maxShown = 256

// CheckPatch returns an error unless a text contains JSON patch operations for elements of a VM that a restore may change: one operation, a
// list of them, or several that are separated by commas. The last form is possible because KubeVirt joins all texts to one list. KubeVirt's
// own check splits a text at commas and colons, and so rejects a MAC address. It accepts a list, which KubeVirt then cannot apply.
func CheckPatch(text string) error {
	_, err := parsePatch(text)
	return err
}

// CheckPatches returns an error for each text that CheckPatch rejects, and one if there are too many operations.
func CheckPatches(texts []string) []error {
	_, errs := parsePatches(texts)
	return errs
}

func parsePatches(texts []string) (operations jsonpatch.Patch, errs []error) {
	copies := 0
	for _, text := range texts {
		parsed, err := parsePatch(text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, operation := range parsed {
			if operation.Kind() == "copy" {
				copies++
			}
		}
		operations = append(operations, parsed...)
		if len(operations) > maxOperations || copies > maxCopies {
			return nil, append(errs, fmt.Errorf("at most %d patch operations are possible, and %d copies among them", maxOperations, maxCopies))
		}
	}
	return operations, errs
}

func parsePatch(text string) (jsonpatch.Patch, error) {
	shown := printable.Text(text, maxShown)
	list := text
	if !strings.HasPrefix(strings.TrimSpace(text), "[") {
		list = "[" + text + "]"
	}
	var operations jsonpatch.Patch
	if err := json.Unmarshal([]byte(list), &operations); err != nil {
		return nil, fmt.Errorf("patch is not valid JSON (%s): %w", shown, err)
	}
	if len(operations) == 0 {
		return nil, errors.New("patch is not valid JSON: it is empty")
	}
	for _, operation := range operations {
		if err := checkOperation(operation, shown); err != nil {
			return nil, err
		}
	}
	return operations, nil
}

// checkOperation returns an error unless an operation changes an element of a VM that a restore may change.
func checkOperation(operation jsonpatch.Operation, shown string) error {
	path, err := operation.Path()
	if err != nil {
		return fmt.Errorf("patch %s has no path: %w", shown, err)
	}
	paths := []string{path}
	if operation["from"] != nil {
		from, err := operation.From()
		if err != nil {
			return fmt.Errorf("patch %s has no valid from: %w", shown, err)
		}
		paths = append(paths, from)
	}
	for _, path := range paths {
		if !slices.ContainsFunc(patchable, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
			return fmt.Errorf("patching is valid only for elements under /spec/ only: %s", shown)
		}
	}
	return nil
}

// patched returns a VM with the patches applied. Its errors are permanent.
func patched(vm *v1.VirtualMachine, patches []string) (*v1.VirtualMachine, error) {
	if len(patches) == 0 {
		return vm, nil
	}
	out, err := applyPatches(vm, patches)
	if err != nil {
		return nil, &impossibleError{fmt.Errorf("%w. Try again with other patches", err)}
	}
	return out, nil
}

func applyPatches(vm *v1.VirtualMachine, patches []string) (*v1.VirtualMachine, error) {
	operations, errs := parsePatches(patches)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	raw, err := json.Marshal(vm)
	if err != nil {
		return nil, fmt.Errorf("encode VirtualMachine %s: %w", vm.Name, err)
	}
	if raw, err = applyBounded(raw, operations); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	out := &v1.VirtualMachine{}
	// The schema of a restore does not validate the content of patches.
	if err := quantity.Check(raw, out); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	// As in the API server, names of fields are case-sensitive.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, out); err != nil {
		return nil, fmt.Errorf("error patching VM %s: %w", vm.Name, err)
	}
	return out, nil
}

// applyBounded applies the operations in groups that end with a copy operation, and checks the size after each group.
func applyBounded(raw []byte, operations jsonpatch.Patch) ([]byte, error) {
	for len(operations) > 0 {
		next := len(operations)
		if i := slices.IndexFunc(operations, func(o jsonpatch.Operation) bool { return o.Kind() == "copy" }); i >= 0 {
			next = i + 1
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
