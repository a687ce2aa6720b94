// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

// DumpState is how far a memory dump is.
type DumpState uint8

// The states of a memory dump.
const (
	// DumpAbsent means that none is being made, and that there is no file: libvirt removes it after an error.
	DumpAbsent DumpState = iota
	// DumpActive means that memory is being written.
	DumpActive
	// DumpDone means that the file is complete.
	DumpDone
)

// DumpSuffix is how the names of files with memory dumps end. KubeVirt's.
const DumpSuffix = ".memory.dump"
