// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import "strings"

// SELinuxLevel returns the level of an SELinux context, such as s0:c1,c2 of system_u:object_r:container_file_t:s0:c1,c2. It is empty if
// there is none, because the node has no SELinux or its agent did not report the context.
func SELinuxLevel(context string) string {
	const fieldsBefore = 3
	parts := strings.SplitN(context, ":", fieldsBefore+1)
	if len(parts) <= fieldsBefore {
		return ""
	}
	return parts[fieldsBefore]
}
