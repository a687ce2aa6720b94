// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import v1 "github.com/vireo-project/vireo/api/v1"

// Image returns an image with the registry and the tag that a KubeVirt object specifies.
func Image(image string, spec *v1.KubeVirtSpec) string {
	return imageRef(image, spec.ImageRegistry, spec.ImageTag)
}
