// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package hypervisor has the types and errors of the agent's connections to hypervisors. Errors distinguish an
// unreachable hypervisor from one that rejected a request. Package rpc implements the connections with libvirt, package
// fake in memory. Consumers declare the interfaces that they need.
package hypervisor

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
)

// ErrUnreachable means that the launcher's libvirtd did not respond: it does not run, it was too slow, or the
// connection broke. The guest's state is then unknown.
var ErrUnreachable = errors.New("libvirtd of the launcher Pod cannot be reached")

// ErrConnecting means that a connection is being made. The VMI is enqueued when it is there.
var ErrConnecting = errors.New("connecting to libvirtd of the launcher Pod")

// ErrNoDomain means that libvirtd responded that it has no such domain.
var ErrNoDomain = errors.New("no such domain")

// ErrNotRunning means that libvirtd responded that the guest is not in a state for the request.
var ErrNotRunning = errors.New("the guest is not running")

// ErrGuestSilent means that libvirtd responded and the guest agent did not.
var ErrGuestSilent = errors.New("the guest agent does not respond")

// ErrGuestRefused means that the guest agent rejected the request.
var ErrGuestRefused = errors.New("the guest agent refused the request")

// PodRef identifies a launcher Pod and its VMI.
type PodRef struct {
	// UID is the Pod's UID, which names its directory on the node.
	UID types.UID
	// VMI is the key of the VMI, which is enqueued after events about the domain.
	VMI types.NamespacedName
}

// State is the state of a domain.
type State string

// The states of a domain.
const (
	// StateDefined: libvirt has the definition and has not started it.
	StateDefined State = "Defined"
	// StateRunning: QEMU runs, and with it the guest. Blocked and suspended guests count as running.
	StateRunning State = "Running"
	// StatePaused: QEMU runs and the guest's CPUs do not.
	StatePaused State = "Paused"
	// StateEnded: QEMU ran and has ended.
	StateEnded State = "Ended"
)

// Reasons of StatePaused.
const (
	// PausedByUser: a client paused it, or it was started paused.
	PausedByUser = "User"
	// PausedIOError: a read or write of a disk failed.
	PausedIOError = "IOError"
	// PausedByLibvirt: libvirt paused it for a moment, for example while it starts, or a migration did. libvirt or the
	// migration ends this.
	PausedByLibvirt = "Transient"
	// PausedAPIError: libvirt paused it for a migration, a dump or a snapshot, and could not resume it afterwards.
	PausedAPIError = "APIError"
	// PausedWatchdog: its watchdog expired.
	PausedWatchdog = "Watchdog"
	// PausedCrashed: it crashed.
	PausedCrashed = "Crashed"
	// PausedPostcopyFailed: a post-copy failed, so that neither side has all of its memory. libvirt may report it as
	// running.
	PausedPostcopyFailed = "PostcopyFailed"
	// PausedUnknown: any other reason, such as an internal error of QEMU or KVM. Nothing resumes it.
	PausedUnknown = "Unknown"
)

// DiskError is why reads or writes of a disk fail.
type DiskError int

// Kinds of a DiskError.
const (
	DiskErrorNone DiskError = iota
	// DiskErrorNoSpace: the storage of the disk is full.
	DiskErrorNoSpace
	// DiskErrorOther: any other error.
	DiskErrorOther
)

// Domain is a domain as libvirt described it. The description comes from a process that a guest may have compromised.
type Domain struct {
	// State is the domain's state.
	State State
	// Reason is the reason of the state: one of the Paused constants for StatePaused.
	Reason string
	// XML is the live definition while QEMU runs, the stored one otherwise.
	XML *libvirtxml.Domain
	// Plugged is how many bytes of memory the running guest has taken beyond those that it had at its start.
	Plugged uint64
}

// Active reports whether QEMU runs.
func (d *Domain) Active() bool {
	return d != nil && (d.State == StateRunning || d.State == StatePaused)
}

// Transient reports whether libvirt paused the guest for a moment and will resume or stop it by itself.
func (d *Domain) Transient() bool {
	return d.Active() && d.State == StatePaused && d.Reason == PausedByLibvirt
}

// AgentChannel is the name of the port on which QEMU's guest agent listens.
const AgentChannel = "org.qemu.guest_agent.0"

// AgentConnected reports whether a program in the guest has opened the guest agent's channel.
func (d *Domain) AgentConnected() bool {
	if d == nil || d.XML == nil || d.XML.Devices == nil {
		return false
	}
	for _, c := range d.XML.Devices.Channels {
		if c.Target != nil && c.Target.VirtIO != nil && c.Target.VirtIO.Name == AgentChannel {
			return c.Target.VirtIO.State == "connected"
		}
	}
	return false
}

// MaxNVRAM is the limit for a file with EFI variables in bytes. OVMF's has half a megabyte; QEMU accepts flash of up to
// 8 MiB in all (max_fw_size in hw/i386/pc.c).
const MaxNVRAM = 8 << 20

// StateFiles are the paths of the persistent state of a VM in its launcher Pod.
type StateFiles struct {
	// NVRAM is the file with the EFI variables, empty if they are not persistent.
	NVRAM string
	// TPM is the directory with the TPM's state, empty if it is not persistent.
	TPM string
}

// ErrStateDamaged means that a file of the persistent state of TPM and EFI cannot be used.
var ErrStateDamaged = errors.New("the persistent state is damaged")

// Pool is a directory of the launcher Pod as a libvirt storage pool.
type Pool struct {
	// Available is the free space of its file system in bytes.
	Available uint64
	// Capacity is the size of its file system in bytes.
	Capacity uint64
	// Volumes are the disk images in it.
	Volumes []Volume
}

// Find returns the volume of a name, or nil.
func (p *Pool) Find(name string) *Volume {
	for i := range p.Volumes {
		if p.Volumes[i].Name == name {
			return &p.Volumes[i]
		}
	}
	return nil
}

// Formats of a volume.
const (
	FormatRaw = "raw"
	// FormatISO is what libvirt reports for an image with the signature of ISO 9660. Such an image is a raw one.
	FormatISO   = "iso"
	FormatQCOW2 = "qcow2"
)

// Volume is a disk image that exists or is to be created.
type Volume struct {
	// Name is the file's name.
	Name string
	// Path is the file's path in the Pod. It is not needed to create a volume.
	Path string
	// Format is raw, qcow2 or another format that libvirt found.
	Format string
	// Capacity is the size of the guest's disk in bytes. 0 creates an overlay of the size of its backing image.
	Capacity uint64
	// Allocation is the space in bytes that it uses in its file system. It is ignored when a volume is created.
	Allocation uint64
	// BackingPath and BackingFormat are the backing image of an overlay.
	BackingPath   string
	BackingFormat string
}

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
