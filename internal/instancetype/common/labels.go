// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common

import "github.com/vireo-project/vireo/api/instancetype"

// prefix is the prefix of the keys of most labels and annotations.
const prefix = instancetype.GroupName + "/"

// Labels of every object.
const (
	// vendorLabel is the object's vendor. KubeVirt's metrics contain only the names of objects of known vendors.
	vendorLabel = prefix + "vendor"
	// releaseLabel is the release of common-instancetypes whose object has the same spec.
	releaseLabel = prefix + "common-instancetypes-version"
)

const (
	vendor  = "kubevirt.io"
	release = "v1.7.0"
)

func commonLabels() map[string]string {
	return map[string]string{vendorLabel: vendor, releaseLabel: release}
}
