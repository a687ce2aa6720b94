// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

// While an annotation of the VMI pauses probes by guestAgentPing, that is recorded in the metadata of its running domain: the kubelet
// runs the probe as a process in the Pod, which can query libvirtd only.
const (
	// ProbesURI is the XML namespace of the record, ProbesPrefix its prefix, ProbesTag its element.
	ProbesURI    = "https://github.com/vireo-project/vireo/probes"
	ProbesPrefix = "probes"
	ProbesTag    = "paused"
	// ProbesNote is the element that marks probes as paused.
	ProbesNote = "<" + ProbesTag + "/>"
)
