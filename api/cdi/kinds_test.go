// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cdi

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/vireo-project/vireo/api/cdi/v1beta1"
)

// The exponent is small enough for the test to fail within a minute if the quantity is decoded.
func TestQuantitiesOfDataVolumesAreNotDecoded(t *testing.T) {
	dv := &DataVolume{}
	dv.Spec.Storage = &v1beta1.StorageSpec{
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(
			"1Gi")}},
	}
	raw, err := json.Marshal(dv)
	if err != nil {
		t.Fatal(err)
	}
	var written struct{ Spec v1beta1.DataVolumeSpec }
	if err := json.Unmarshal(raw, &written); err != nil || written.Spec.Storage == nil ||
		written.Spec.Storage.Resources.Requests.Storage().String() != "1Gi" {
		t.Errorf("wrote %s, %v", raw, err)
	}
	list := &DataVolumeList{}
	hostile := `{"items":[{"spec":{"storage":{"resources":{"requests":{"storage":"1e-1000000"}}},"source":{"pvc":{"name":"golden"}},` +
		`"sourceRef":{"name":"debian"}},"status":{"phase":"Succeeded"}}]}`
	if err := json.Unmarshal([]byte(hostile), list); err != nil {
		t.Fatal(err)
	}
	read := list.Items[0]
	if read.Spec.Storage != nil || read.Status.Phase != DataVolumeSucceeded || read.Spec.Source.PVC.Name != "golden" ||
		read.Spec.SourceRef.Name != "debian" {
		t.Errorf("read %+v", read)
	}
}
