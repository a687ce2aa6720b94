// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import (
	"crypto/sha1" //nolint:gosec // see InstanceID
	"encoding/hex"
)

const (
	// maxInstanceID is the length of a DNS label (RFC 1035).
	maxInstanceID = 63
	// instanceHashLength is the number of digits of the hash at the end of a shortened name.
	instanceHashLength = 8
)

// InstanceID is the value of the label vmi.kubevirt.io/id of the Pod of a VMI: the name of the VMI, or the start of a long
// name and a hash. Source: kubevirt/kubevirt pkg/apimachinery, CalculateVirtualMachineInstanceID.
func InstanceID(name string) string {
	if len(name) <= maxInstanceID {
		return name
	}
	sum := sha1.Sum([]byte(name)) //nolint:gosec // KubeVirt's hash; it distinguishes names and protects nothing
	return name[:maxInstanceID-instanceHashLength-1] + "-" + hex.EncodeToString(sum[:])[:instanceHashLength]
}
