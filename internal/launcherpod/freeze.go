// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import "time"

// Before a guest is frozen, that is recorded in the metadata of its running domain: it has to be thawed in time even if the process
// that froze it does not run any more.
const (
	// FreezeURI is the XML namespace of the record, FreezePrefix its prefix, FreezeTag its element.
	FreezeURI    = "https://github.com/vireo-project/vireo/freeze"
	FreezePrefix = "vireo"
	FreezeTag    = "frozen"
)

// FreezerBinary freezes and thaws the guest from inside the Pod, for the hooks of backup tools. KubeVirt's path.
const FreezerBinary = "/usr/bin/virt-freezer"

// FreezeNote is the element with the time until which the guest may be frozen. Zero means until a request to thaw it.
func FreezeNote(thaw time.Time) string {
	if thaw.IsZero() {
		return "<" + FreezeTag + "/>"
	}
	return "<" + FreezeTag + " thaw='" + thaw.UTC().Format(time.RFC3339) + "'/>"
}
