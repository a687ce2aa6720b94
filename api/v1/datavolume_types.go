// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/json"
	"fmt"
)

// DataVolumeSpec is the specification of a DataVolume of the Containerized Data Importer (cdi.kubevirt.io/v1beta1).
// It is kept exactly as it was given: that project's own webhook judges it when the DataVolume is created.
// +kubebuilder:validation:Type=object
// +kubebuilder:pruning:PreserveUnknownFields
type DataVolumeSpec struct {
	// Raw is the specification as JSON.
	Raw json.RawMessage `json:"-"`
}

// MarshalJSON returns the specification as it was read, and an empty object when there is none.
func (s DataVolumeSpec) MarshalJSON() ([]byte, error) {
	if len(s.Raw) == 0 {
		return []byte("{}"), nil
	}
	return s.Raw, nil
}

// UnmarshalJSON keeps the specification as it is.
func (s *DataVolumeSpec) UnmarshalJSON(data []byte) error {
	if !json.Valid(data) {
		return fmt.Errorf("spec of a DataVolume template is not JSON")
	}
	s.Raw = append(json.RawMessage(nil), data...)
	return nil
}
