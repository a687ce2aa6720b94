// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// CustomizerAnnotation is on the objects that spec.customizeComponents.patches change, with a digest of the patches.
// KubeVirt's name.
const CustomizerAnnotation = "kubevirt.io/customizer-identifier"

// patchableKinds are the kinds that patches apply to. KubeVirt's, without webhook configurations and Secrets, which are
// not rendered.
var patchableKinds = []string{"DaemonSet", "Deployment", "Service", "APIService"}

// PatchError is a patch of spec.customizeComponents that cannot be applied.
type PatchError struct {
	// Index is the patch's index in the list, and Kind and Name are those of the object that it should change.
	Index      int
	Kind, Name string
	Err        error
}

// Error implements error.
func (e *PatchError) Error() string {
	return fmt.Sprintf("spec.customizeComponents.patches[%d] cannot be applied to %s %s, which stays as it is: %v",
		e.Index, e.Kind, e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *PatchError) Unwrap() error { return e.Err }

// PatchErrors returns the patches that cannot be applied according to an error of Render.
func PatchErrors(err error) []*PatchError {
	var patches []*PatchError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			patches = append(patches, PatchErrors(one)...)
		}
		return patches
	}
	var patch *PatchError
	if errors.As(err, &patch) {
		patches = append(patches, patch)
	}
	return patches
}

// customize applies the patches that select an object to it. The rules are KubeVirt's: kind and name are compared
// without case, and
// * selects any.
func customize(o client.Object, patches []v1.CustomizeComponentsPatch) error {
	kind, name, namespace := o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), o.GetNamespace()
	if !slices.Contains(patchableKinds, kind) {
		return nil
	}
	selected := false
	for i := range patches {
		if p := &patches[i]; !selects(p.ResourceType, kind) || !selects(p.ResourceName, name) {
			continue
		}
		if err := applyPatch(o, &patches[i]); err != nil {
			return &PatchError{Index: i, Kind: kind, Name: name, Err: err}
		}
		selected = true
	}
	if selected {
		// Whatever a patch contains, it is still the same object.
		o.SetName(name)
		o.SetNamespace(namespace)
		annotate(o, map[string]string{CustomizerAnnotation: digest(patches)})
	}
	return nil
}

func selects(pattern, value string) bool { return pattern == "*" || strings.EqualFold(pattern, value) }

// applyPatch changes an object. With an error the object is unchanged.
func applyPatch(o client.Object, p *v1.CustomizeComponentsPatch) error {
	before, err := json.Marshal(o)
	if err != nil {
		return err
	}
	after, err := patched(before, o, p)
	if err != nil {
		return err
	}
	// A new object: decoding into the old one would keep what the patch has removed.
	changed := reflect.New(reflect.TypeOf(o).Elem())
	if err := json.Unmarshal(after, changed.Interface()); err != nil {
		return fmt.Errorf("the result is not valid: %w", err)
	}
	reflect.ValueOf(o).Elem().Set(changed.Elem())
	return nil
}

func patched(before []byte, o client.Object, p *v1.CustomizeComponentsPatch) ([]byte, error) {
	_, untyped := o.(runtime.Unstructured)
	switch {
	case p.Type == v1.JSONPatchType:
		operations, err := jsonpatch.DecodePatch([]byte(p.Patch))
		if err != nil {
			return nil, err
		}
		return operations.Apply(before)
	case p.Type == v1.MergePatchType, p.Type == v1.StrategicMergePatchType && untyped:
		// The lists of an APIService have no merge keys, so that for it both are the same.
		return jsonpatch.MergePatch(before, []byte(p.Patch))
	case p.Type == v1.StrategicMergePatchType:
		return strategicpatch.StrategicMergePatch(before, []byte(p.Patch), o)
	}
	return nil, fmt.Errorf("its type %q is none of json, merge and strategic", p.Type)
}

// flagArgs returns the arguments for additional flags, sorted by name. They follow the fixed ones, so that they win. As
// in KubeVirt, an empty value gives the flag alone, and names are in lower case; unlike there, values keep their case.
func flagArgs(flags map[string]string) []string {
	args := make([]string, 0, len(flags))
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		flag := "--" + strings.ToLower(strings.TrimLeft(name, "-"))
		if flags[name] != "" {
			flag += "=" + flags[name]
		}
		args = append(args, flag)
	}
	return args
}

// annotate adds annotations to an object. Those that it has are replaced.
func annotate(o client.Object, annotations map[string]string) {
	merged := maps.Clone(o.GetAnnotations())
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, annotations)
	o.SetAnnotations(merged)
}

// digest returns a digest of a value's JSON, as long as KubeVirt's.
func digest(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:20])
}
