// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

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
	// PausedTransient: libvirt paused it for a moment, for example while it starts, or a migration did. libvirt or the migration ends this.
	PausedTransient = "Transient"
	// PausedAPIError: libvirt paused it for a migration, a dump or a snapshot, and could not resume it afterwards.
	PausedAPIError = "APIError"
	// PausedWatchdog: its watchdog expired.
	PausedWatchdog = "Watchdog"
	// PausedCrashed: it crashed.
	PausedCrashed = "Crashed"
	// PausedPostcopyFailed: a post-copy failed, so that neither side has all of its memory. libvirt may report it as running.
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
