// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package revisiondata encodes the data of ControllerRevisions.
//
// The data is immutable byte by byte. When the API server applies a strategic merge patch, as the garbage collector
// sends to orphan an object, it encodes the data anew with sorted keys. If the stored keys are not sorted, every such
// patch fails. See docs/adr/0063.
package revisiondata

import (
	"encoding/json"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// formAnnotation is the form of a revision's data, so that the data need not be read. Its only value is that of
// json.Marshal for maps.
const (
	formAnnotation = "kubevirt.io/data-form"
	formSorted     = "sorted"
)

// SetData stores a value in a ControllerRevision, with sorted keys.
func SetData(revision *appsv1.ControllerRevision, value any) error {
	raw, err := json.Marshal(value)
	if err == nil {
		raw, err = SortKeys(raw)
	}
	if err != nil {
		return err
	}
	revision.Data = runtime.RawExtension{Raw: raw}
	MarkSorted(revision)
	return nil
}

// MarkSorted annotates a ControllerRevision whose data has sorted keys.
func MarkSorted(revision *appsv1.ControllerRevision) {
	metav1.SetMetaDataAnnotation(&revision.ObjectMeta, formAnnotation, formSorted)
}

// IsSorted reports whether a ControllerRevision, or its metadata, is annotated as one whose data has sorted keys.
func IsSorted(revision metav1.Object) bool {
	return revision.GetAnnotations()[formAnnotation] == formSorted
}

// SortKeys encodes JSON as the API server does when it patches a ControllerRevision.
func SortKeys(raw []byte) ([]byte, error) {
	var value any
	// Numbers are decoded as the API server does.
	if err := utiljson.Unmarshal(raw, &value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}
