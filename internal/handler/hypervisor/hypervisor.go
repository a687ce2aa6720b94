// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"errors"
	"os"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
)

// ErrUnreachable means that the launcher's libvirtd did not answer: it is not there, it was too slow, or the
// connection broke. It says nothing about the guest, whose state is then unknown.
var ErrUnreachable = errors.New("libvirtd of the launcher Pod cannot be reached")

// ErrConnecting means that a connection is being made. Whoever asked is told when it is there.
var ErrConnecting = errors.New("connecting to libvirtd of the launcher Pod")

// ErrNoDomain means that libvirtd answered and has no such domain.
var ErrNoDomain = errors.New("no such domain")

// ErrNotRunning means that libvirtd answered and the guest is not in a state for what was asked.
var ErrNotRunning = errors.New("the guest is not running")

// ErrGuestSilent means that libvirtd answered and no agent in the guest does.
var ErrGuestSilent = errors.New("the agent in the guest does not answer")

// ErrGuestRefused means that the agent in the guest answered that it does not do what was asked.
var ErrGuestRefused = errors.New("the agent in the guest refused")

// PodRef says which launcher Pod a connection leads to and which VMI it serves.
type PodRef struct {
	// UID is the Pod's UID, which names its directory on the node.
	UID types.UID
	// VMI is the key that events about the domain are reported under.
	VMI types.NamespacedName
}

// State is what a domain does.
type State string

// The states of a domain.
const (
	// StateDefined: known to libvirt and never started.
	StateDefined State = "Defined"
	// StateRunning: QEMU runs, and with it the guest. Blocked and suspended guests count as running.
	StateRunning State = "Running"
	// StatePaused: QEMU runs, the guest's CPUs do not.
	StatePaused State = "Paused"
	// StateEnded: QEMU ran and is gone.
	StateEnded State = "Ended"
)

// Reasons of StatePaused that the agent tells apart. Any other reason is left to libvirt's own name.
const (
	// PausedByUser: a client asked for it, or the domain was started paused.
	PausedByUser = "User"
	// PausedIOError: a disk could not be written or read.
	PausedIOError = "IOError"
	// PausedTransient: libvirt is between two states, such as starting up.
	PausedTransient = "Transient"
)

// DiskError is what keeps a disk from being read or written.
type DiskError int

// Kinds of a DiskError.
const (
	DiskErrorNone DiskError = iota
	// DiskErrorNoSpace: what the disk lies on is full.
	DiskErrorNoSpace
	// DiskErrorOther: anything else.
	DiskErrorOther
)

// Domain is a domain as libvirt described it at one moment. What it says about the guest comes from a process
// that the guest may control.
type Domain struct {
	// State is what the domain does.
	State State
	// Reason says why, as one of the Paused constants or in libvirt's words.
	Reason string
	// XML is the live definition while QEMU runs, the stored one otherwise.
	XML *libvirtxml.Domain
}

// Active says that QEMU runs.
func (d *Domain) Active() bool {
	return d != nil && (d.State == StateRunning || d.State == StatePaused)
}

// AgentChannel is the name of the port on which QEMU's guest agent listens.
const AgentChannel = "org.qemu.guest_agent.0"

// AgentConnected says that a program in the guest holds the agent's channel open.
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

// Process is a way to a launcher's libvirtd process that cannot be turned to another process: once it has
// ended, the descriptor leads nowhere.
type Process struct {
	// Pod is the launcher Pod that it belongs to.
	Pod types.UID
	// Dir is its directory in /proc, opened while the connection was checked.
	Dir *os.File
}
