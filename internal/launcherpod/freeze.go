// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import "time"

// A freeze is noted in the running domain's metadata before the guest is frozen: it must be thawed in time even if whoever
// froze it is gone by then.
const (
	// FreezeURI is the namespace of the note, FreezePrefix the prefix that it gets, FreezeTag the element.
	FreezeURI    = "https://github.com/vireo-project/vireo/freeze"
	FreezePrefix = "vireo"
	FreezeTag    = "frozen"
)

// FreezerBinary freezes and thaws the guest from inside the Pod, for the hooks of a backup. KubeVirt's path.
const FreezerBinary = "/usr/bin/virt-freezer"

// FreezeNote is the element that says until when the guest may be frozen; zero means until somebody asks for the thaw.
func FreezeNote(thaw time.Time) string {
	if thaw.IsZero() {
		return "<" + FreezeTag + "/>"
	}
	return "<" + FreezeTag + " thaw='" + thaw.UTC().Format(time.RFC3339) + "'/>"
}
