// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

// That probes by guestAgentPing are paused, by an annotation of the VMI, is noted in the running domain's metadata: the probe is a
// process that the kubelet starts in the Pod, and libvirtd is all that it can ask.
const (
	// ProbesURI is the namespace of the note, ProbesPrefix the prefix that it gets, ProbesTag the element.
	ProbesURI    = "https://github.com/vireo-project/vireo/probes"
	ProbesPrefix = "probes"
	ProbesTag    = "paused"
	// ProbesNote is the element that says that they are paused.
	ProbesNote = "<" + ProbesTag + "/>"
)
