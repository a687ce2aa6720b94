// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of what virt-controller keeps in memory for each object of a tenant, in bytes of JSON. The API server permits
// 1.5 MiB. KubeVirt has no such limits. A template is written as often as it has replicas.
const (
	maxSpec     = 512 << 10
	maxTemplate = 256 << 10
)

// tooLarge returns an error if a part of an object is larger than a limit, unless it already was: objects of an earlier
// version can still be started and changed. before is nil for a new object.
func tooLarge[T any](path *field.Path, limit int, before, after *T) field.ErrorList {
	if size(after) <= limit || before != nil && size(before) > limit {
		return nil
	}
	return field.ErrorList{field.TooLong(path, "", limit)}
}

// size returns how many bytes a part of an object has. What was decoded can be encoded.
func size[T any](part *T) int {
	raw, err := json.Marshal(part)
	if err != nil {
		return 0
	}
	return len(raw)
}
