// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package commoninstancetypes

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/decide/instancetype/common"
)

// marks are the labels of every common object. KubeVirt's.
var marks = map[string]string{manifests.ManagedByLabel: manifests.ManagedBy, v1.AppComponentLabel: v1.AppComponent}

var (
	instancetypeKind = v1beta1.GroupVersion.WithKind("VirtualMachineClusterInstancetype")
	preferenceKind   = v1beta1.GroupVersion.WithKind("VirtualMachineClusterPreference")
	kinds            = []schema.GroupVersionKind{instancetypeKind, preferenceKind}
)

// wanted returns the common objects, which must not be changed.
var wanted = sync.OnceValues(func() ([]*unstructured.Unstructured, error) {
	instancetypes, preferences := common.Instancetypes(), common.Preferences()
	typed := make([]client.Object, 0, len(instancetypes)+len(preferences))
	for _, object := range instancetypes {
		typed = append(typed, object)
	}
	for _, object := range preferences {
		typed = append(typed, object)
	}
	objects := make([]*unstructured.Unstructured, 0, len(typed))
	for _, object := range typed {
		labels := object.GetLabels()
		maps.Copy(labels, marks)
		object.SetLabels(labels)
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, fmt.Errorf("cannot render %s: %w", object.GetName(), err)
		}
		unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
		rendered := &unstructured.Unstructured{Object: content}
		manifests.Stamp(rendered)
		objects = append(objects, rendered)
	}
	return objects, nil
})

// names returns the names of the common objects.
var names = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, object := range common.Instancetypes() {
		all[object.Name] = true
	}
	for _, object := range common.Preferences() {
		all[object.Name] = true
	}
	return all
})

// keyOf returns the kind and the name of an object.
func keyOf(o client.Object) string {
	return o.GetObjectKind().GroupVersionKind().Kind + " " + o.GetName()
}

// isMarked reports whether an object has the labels of the common objects. An object without them was not applied by
// Vireo. One with them may be a copy.
func isMarked(o client.Object) bool {
	for key, value := range marks {
		if o.GetLabels()[key] != value {
			return false
		}
	}
	return true
}

// isOwned reports whether Vireo has applied an object that belongs to no other client: it has no owner reference, and
// no other client has applied parts of its spec. Changes of its spec by other means, like kubectl edit, do not matter.
func isOwned(o *metav1.PartialObjectMetadata) bool {
	if !isMarked(o) || len(o.OwnerReferences) > 0 {
		return false
	}
	applied := false
	for i := range o.ManagedFields {
		entry := &o.ManagedFields[i]
		switch {
		case entry.Operation != metav1.ManagedFieldsOperationApply:
		case entry.Manager == manifests.FieldManager:
			applied = true
		case hasSpec(entry.FieldsV1):
			return false
		}
	}
	return applied
}

// hasSpec reports whether managed fields include parts of the spec. If they cannot be read, they do.
func hasSpec(fields *metav1.FieldsV1) bool {
	if fields == nil {
		return false
	}
	top := map[string]json.RawMessage{}
	if err := json.Unmarshal(fields.GetRawBytes(), &top); err != nil {
		return true
	}
	_, has := top["f:spec"]
	return has
}
