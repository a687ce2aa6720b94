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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// ProductLabels returns the labels of the product that a KubeVirt object names, and the errors of names that cannot be
// labels. These are left out, as in KubeVirt.
func ProductLabels(spec *v1.KubeVirtSpec) (map[string]string, field.ErrorList) {
	labels := map[string]string{}
	var errs field.ErrorList
	for _, name := range []struct{ field, label, value string }{
		{"productName", v1.AppPartOfLabel, spec.ProductName},
		{"productVersion", v1.AppVersionLabel, spec.ProductVersion},
		{"productComponent", v1.AppComponentLabel, spec.ProductComponent},
	} {
		if name.value == "" {
			continue
		}
		if problems := validation.IsValidLabelValue(name.value); len(problems) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("spec", name.field), name.value, strings.Join(problems, "; ")))
			continue
		}
		labels[name.label] = name.value
	}
	return labels, errs
}

// labelsOf returns the labels of an object. A patch cannot change those by which it is found.
func labelsOf(name string, own, product map[string]string) map[string]string {
	labels := productLabels(own, product)
	labels[v1.AppLabel] = name
	return labels
}

// productLabels adds the labels of the product to others. They are KubeVirt's.
func productLabels(own, product map[string]string) map[string]string {
	labels := mergeMaps(map[string]string{v1.AppComponentLabel: v1.AppComponent, v1.AppPartOfLabel: v1.AppComponent}, own)
	maps.Copy(labels, product)
	labels[ManagedByLabel] = ManagedBy
	return labels
}

// mergeMaps returns the entries of both. Those of the second win.
func mergeMaps(a, b map[string]string) map[string]string {
	merged := maps.Clone(a)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, b)
	return merged
}

// placeInfra adds the placement of the control plane to a Pod that prefers control plane nodes. A placement replaces
// that preference.
func placeInfra(pod *corev1.PodSpec, placement *v1.NodePlacement) {
	if placement != nil && pod.Affinity != nil {
		pod.Affinity.NodeAffinity = nil
	}
	place(pod, placement)
}

// place adds a placement to that of a manifest. As in KubeVirt, the manifest's node selector wins, and terms and
// tolerations are appended to the manifest's.
func place(pod *corev1.PodSpec, placement *v1.NodePlacement) {
	if placement == nil {
		return
	}
	selector := maps.Clone(placement.NodeSelector)
	if selector == nil {
		selector = map[string]string{}
	}
	maps.Copy(selector, pod.NodeSelector)
	if len(selector) > 0 {
		pod.NodeSelector = selector
	}
	pod.Tolerations = append(pod.Tolerations, placement.Tolerations...)
	if placement.Affinity != nil {
		pod.Affinity = mergeAffinity(pod.Affinity, placement.Affinity.DeepCopy())
	}
}

func mergeAffinity(to, from *corev1.Affinity) *corev1.Affinity {
	if to == nil {
		return from
	}
	if n := from.NodeAffinity; n != nil {
		if to.NodeAffinity == nil {
			to.NodeAffinity = &corev1.NodeAffinity{}
		}
		mergeNodeAffinity(to.NodeAffinity, n)
	}
	if p := from.PodAffinity; p != nil {
		if to.PodAffinity == nil {
			to.PodAffinity = &corev1.PodAffinity{}
		}
		t := to.PodAffinity
		t.RequiredDuringSchedulingIgnoredDuringExecution = append(t.RequiredDuringSchedulingIgnoredDuringExecution,
			p.RequiredDuringSchedulingIgnoredDuringExecution...)
		t.PreferredDuringSchedulingIgnoredDuringExecution = append(t.PreferredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if p := from.PodAntiAffinity; p != nil {
		if to.PodAntiAffinity == nil {
			to.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		t := to.PodAntiAffinity
		t.RequiredDuringSchedulingIgnoredDuringExecution = append(t.RequiredDuringSchedulingIgnoredDuringExecution,
			p.RequiredDuringSchedulingIgnoredDuringExecution...)
		t.PreferredDuringSchedulingIgnoredDuringExecution = append(t.PreferredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	return to
}

func mergeNodeAffinity(to, from *corev1.NodeAffinity) {
	to.PreferredDuringSchedulingIgnoredDuringExecution = append(to.PreferredDuringSchedulingIgnoredDuringExecution,
		from.PreferredDuringSchedulingIgnoredDuringExecution...)
	switch required := from.RequiredDuringSchedulingIgnoredDuringExecution; {
	case required == nil:
	case to.RequiredDuringSchedulingIgnoredDuringExecution == nil:
		to.RequiredDuringSchedulingIgnoredDuringExecution = required
	default:
		terms := &to.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		*terms = append(*terms, required.NodeSelectorTerms...)
	}
}
