// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	kjson "sigs.k8s.io/json"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/quantity"
)

// patchable contains the prefixes of the paths that patches may change, as in KubeVirt.
var patchable = []string{"/spec/", "/metadata/labels/", "/metadata/annotations/"}

// maxPatched is the maximum size of a patched VM in bytes, which is the API server's limit for an object. A copy
// operation can double the size.
const maxPatched = 3 << 19

// Limits of the operations in all patches of a restore. The VM is decoded and encoded again for each copy.
const (
	maxOperations = 1024
	maxCopies     = 16
)

// maxWork limits the work of all patches of a restore: the number of operations multiplied by the size of the VM in
// bytes, because each operation may copy, or compare, the longest list of the VM. A VM of 32 KiB may have
// maxOperations, the largest one about 20.
const maxWork = 32 << 20

// maxRemembered is how many results are remembered.
const maxRemembered = 32

// RememberedBytes is how many bytes all of them have at most.
const RememberedBytes = maxRemembered * maxPatched

// maxShown is how many characters of a patch an error contains.
const maxShown = 256

// CheckPatch returns an error unless a text contains JSON patch operations for elements of a VM that a restore may
// change: one operation, a list of them, or several that are separated by commas. The last form is possible because
// KubeVirt joins all texts to one list. KubeVirt's own check splits a text at commas and colons, and so rejects a MAC
// address. It accepts a list, which KubeVirt then cannot apply.
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
	tooMany := fmt.Errorf("at most %d patch operations are possible, and %d copies among them", maxOperations, maxCopies)
	if len(texts) > maxOperations {
		return nil, []error{tooMany} // Each has an operation, or is an error.
	}
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
			return nil, append(errs, tooMany)
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

// Patches applies the patches of restores and remembers the results, because a restore is reconciled after each change
// in its namespace. The zero value is ready for use, and nil remembers nothing.
type Patches struct {
	mu sync.Mutex
	// results are the results by the UID of the restore.
	results *lru.Cache
	// applied counts how often patches were applied.
	applied int
}

// result is the outcome of applying patches to a VM.
type result struct {
	// sum identifies the VM and the patches.
	sum [sha256.Size]byte
	// raw is the patched VM.
	raw []byte
	err error
}

// apply applies the patches of a restore to an encoded VM, unless it has done so before.
func (p *Patches) apply(restore types.UID, vm []byte, patches []string) ([]byte, error) {
	if p == nil {
		return applyAll(vm, patches)
	}
	sum := sumOf(vm, patches)
	if known, ok := p.remembered().Get(restore); ok {
		if known, ok := known.(result); ok && known.sum == sum {
			return known.raw, known.err
		}
	}
	raw, err := applyAll(vm, patches)
	p.mu.Lock()
	p.applied++
	p.mu.Unlock()
	p.remembered().Add(restore, result{sum, raw, err})
	return raw, err
}

func (p *Patches) remembered() *lru.Cache {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.results == nil {
		p.results = lru.New(maxRemembered)
	}
	return p.results
}

func sumOf(vm []byte, patches []string) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write(vm)
	for _, text := range patches {
		h.Write([]byte(strconv.Quote(text)))
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// patched returns a VM with the patches of the restore applied. Its errors are permanent.
func (s *scope) patched(vm *v1.VirtualMachine) (*v1.VirtualMachine, error) {
	if len(s.Restore.Spec.Patches) == 0 {
		return vm, nil
	}
	out, err := s.applyPatches(vm)
	if err != nil {
		return nil, &impossibleError{fmt.Errorf("%w. Try again with other patches", err)}
	}
	return out, nil
}

func (s *scope) applyPatches(vm *v1.VirtualMachine) (*v1.VirtualMachine, error) {
	raw, err := json.Marshal(vm)
	if err != nil {
		return nil, fmt.Errorf("encode VirtualMachine %s: %w", vm.Name, err)
	}
	if raw, err = s.Patches.apply(s.Restore.UID, raw, s.Restore.Spec.Patches); err != nil {
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

// applyAll applies patches to an encoded VM. It applies the operations in groups that end with a copy operation, and
// checks before each group how much work it is, and the size after it.
func applyAll(raw []byte, patches []string) ([]byte, error) {
	operations, errs := parsePatches(patches)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	added, work := len(strings.Join(patches, "")), 0
	for len(operations) > 0 {
		next := len(operations)
		if i := slices.IndexFunc(operations, func(o jsonpatch.Operation) bool { return o.Kind() == "copy" }); i >= 0 {
			next = i + 1
		}
		if work += next * (len(raw) + added); work > maxWork {
			return nil, fmt.Errorf(
				"too many patch operations for an object of %d bytes: operations times bytes may be at most %d", len(raw), maxWork)
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
