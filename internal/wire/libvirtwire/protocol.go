// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Numbers of libvirt's remote protocol, which never change once released (src/remote/remote_protocol.x and
// src/rpc/virnetprotocol.x in libvirt).
const (
	programRemote   = 0x20008086
	programQEMU     = 0x20008087
	protocolVersion = 1

	procConnectOpen           = 1
	procConnectClose          = 2
	procGetCapabilities       = 7
	procDomainLookupByName    = 23
	procDomainGetJobInfo      = 163
	procDomainOpenConsole     = 201
	procDomainScreenshot      = 211
	procDomainGetState        = 212
	procDomainDestroyFlags    = 234
	procDomainOpenGraphics    = 249
	procDomainShutdownFlags   = 258
	procDomainSetMetadata     = 264
	procDomainGetMetadata     = 265
	procEventRegisterAny      = 316
	procEventLifecycleMessage = 318
	procDomainCoreDump        = 334 // with a format
	procGetDomainCapabilities = 342
	procBaselineHypervisorCPU = 394

	// The five requests of a migration, all with typed parameters.
	procMigrateBegin   = 302
	procMigratePrepare = 303
	procMigratePerform = 305
	procMigrateFinish  = 306
	procMigrateConfirm = 307

	// procQEMUAgentCommand belongs to programQEMU (src/remote/qemu_protocol.x).
	procQEMUAgentCommand = 3

	typeCall        = 0
	typeReply       = 1
	typeMessage     = 2
	typeStream      = 3
	typeCallWithFDs = 4

	statusOK = 0
	// statusContinue is the status of pieces of a stream. An empty piece is the end of the stream.
	statusContinue = 2

	eventIDLifecycle = 0

	// headerSize is the length word and the six words of virNetMessageHeader.
	headerSize = 28
	// maxMessage is the limit for a message from the daemon in bytes. libvirt's own limit is 32 MiB (VIR_NET_MESSAGE_MAX);
	// the longest message here is a guest agent's response, a string of up to 4 MiB (REMOTE_STRING_MAX).
	maxMessage = 4<<20 + 4<<10
)

// State is a domain's state (virDomainState).
type State int32

// States of a domain.
const (
	StateNone        State = 0
	StateRunning     State = 1
	StateBlocked     State = 2
	StatePaused      State = 3
	StateShutdown    State = 4
	StateShutoff     State = 5
	StateCrashed     State = 6
	StatePMSuspended State = 7
)

// Active reports whether the domain has a QEMU process.
func (s State) Active() bool {
	switch s {
	case StateRunning, StateBlocked, StatePaused, StateShutdown, StatePMSuspended:
		return true
	case StateNone, StateShutoff, StateCrashed:
		return false
	default:
		return false
	}
}

// RunningReason is why a domain runs (virDomainRunningReason).
type RunningReason int32

// RunningPostcopy is the reason for StateRunning of a migration's target whose memory is still being transferred.
const RunningPostcopy RunningReason = 10

// PausedReason is why a domain is paused (virDomainPausedReason).
type PausedReason int32

// Reasons for StatePaused.
const (
	PausedUser           PausedReason = 1
	PausedMigration      PausedReason = 2
	PausedSave           PausedReason = 3
	PausedDump           PausedReason = 4
	PausedIOError        PausedReason = 5
	PausedWatchdog       PausedReason = 6
	PausedFromSnapshot   PausedReason = 7
	PausedShuttingDown   PausedReason = 8
	PausedSnapshot       PausedReason = 9
	PausedCrashed        PausedReason = 10
	PausedStartingUp     PausedReason = 11
	PausedPostcopy       PausedReason = 12
	PausedPostcopyFailed PausedReason = 13
)

// ShutoffReason is why a domain is shut off (virDomainShutoffReason).
type ShutoffReason int32

// Reasons for StateShutoff.
const (
	ShutoffUnknown   ShutoffReason = 0
	ShutoffShutdown  ShutoffReason = 1
	ShutoffDestroyed ShutoffReason = 2
	ShutoffCrashed   ShutoffReason = 3
	ShutoffMigrated  ShutoffReason = 4
	ShutoffSaved     ShutoffReason = 5
	ShutoffFailed    ShutoffReason = 6
)

// EventType is what happened to a domain (virDomainEventType).
type EventType int32

// Lifecycle events.
const (
	EventDefined     EventType = 0
	EventUndefined   EventType = 1
	EventStarted     EventType = 2
	EventSuspended   EventType = 3
	EventResumed     EventType = 4
	EventStopped     EventType = 5
	EventShutdown    EventType = 6
	EventPMSuspended EventType = 7
	EventCrashed     EventType = 8
)

// Details of EventStopped (virDomainEventStoppedDetailType).
const (
	StoppedShutdown  = 0
	StoppedDestroyed = 1
	StoppedCrashed   = 2
	StoppedMigrated  = 3
	StoppedSaved     = 4
	StoppedFailed    = 5
)

// Details of EventShutdown (virDomainEventShutdownDetailType).
const (
	// ShutdownGuest means that the guest shut down.
	ShutdownGuest = 1
	// ShutdownHost means that QEMU received a signal.
	ShutdownHost = 2
)

// shutdownACPI is VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN (virDomainShutdownFlagValues).
const shutdownACPI = 1

// Kinds of an active job (virDomainJobType).
const (
	jobBounded   = 1
	jobUnbounded = 2
)

// CrashedPanicked is the detail of EventCrashed for a guest whose kernel panicked.
const CrashedPanicked = 0

// Codes of an Error (virErrorNumber).
const (
	// CodeNoDomain means that there is no such domain.
	CodeNoDomain = 42
	// CodeArgumentUnsupported means, for a command to the guest agent, that the domain has no channel for one.
	CodeArgumentUnsupported = 74
	// CodeNoDomainMetadata means that the metadata does not exist.
	CodeNoDomainMetadata = 80
	// CodeOperationInvalid means that the domain is not in a state for the call, for example not running.
	CodeOperationInvalid = 55
	// CodeAgentUnresponsive means that no guest agent responds.
	CodeAgentUnresponsive = 86
	// CodeAgentCommandTimeout means that the agent received a command and did not respond in time.
	CodeAgentCommandTimeout = 112
)

// Error is an error response of the daemon.
type Error struct {
	// Code is libvirt's error number.
	Code int32
	// Message is libvirt's text.
	Message string
}

// Error returns libvirt's message.
func (e *Error) Error() string { return "libvirt: " + e.Message }

// Domain identifies a domain in the protocol.
type Domain struct {
	// Name is the domain's name.
	Name string
	// UUID is its UUID.
	UUID [16]byte
	// ID is the id of a running domain, or -1.
	ID int32
}

// Event is a lifecycle event of a domain.
type Event struct {
	// Domain is the domain of the event.
	Domain Domain
	// Type is the type of the event.
	Type EventType
	// Detail is the cause; its meaning depends on Type.
	Detail int32
}

func (e *encoder) domain(d Domain) {
	e.str(d.Name)
	e.fixed(d.UUID[:])
	e.i32(d.ID)
}

func (d *decoder) domain() Domain {
	var out Domain
	out.Name = d.str()
	copy(out.UUID[:], d.take(len(out.UUID)))
	out.ID = d.i32()
	return out
}

// errShort means that a message is shorter than its content.
var errShort = errors.New("the message is too short")

// maxString is the limit for a string from the daemon in bytes. libvirt's own limit (REMOTE_STRING_MAX) is 4 MiB; names
// and errors are far shorter.
const maxString = 1 << 20

// encoder writes XDR (RFC 4506): big endian, everything padded to four bytes.
type encoder struct{ buf []byte }

func (e *encoder) u32(v uint32) { e.buf = binary.BigEndian.AppendUint32(e.buf, v) }

func (e *encoder) i32(v int32) { e.u32(uint32(v)) }

func (e *encoder) fixed(b []byte) {
	e.buf = append(e.buf, b...)
	for len(e.buf)%4 != 0 {
		e.buf = append(e.buf, 0)
	}
}

func (e *encoder) str(s string) {
	e.u32(uint32(len(s)))
	e.fixed([]byte(s))
}

// optionalStr writes a remote_string, which is absent if the string is empty.
func (e *encoder) optionalStr(s string) {
	if s == "" {
		e.u32(0)
		return
	}
	e.u32(1)
	e.str(s)
}

// decoder reads XDR. After the first error, which is in err, every read returns a zero value.
type decoder struct {
	buf []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	padded := (n + 3) &^ 3
	if n < 0 || padded > len(d.buf) {
		d.err = errShort
		return nil
	}
	b := d.buf[:n]
	d.buf = d.buf[padded:]
	return b
}

func (d *decoder) u32() uint32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (d *decoder) i32() int32 { return int32(d.u32()) }

func (d *decoder) str() string {
	n := d.u32()
	if d.err == nil && n > maxString {
		d.err = fmt.Errorf("a string of %d bytes passes the limit of %d", n, maxString)
	}
	return string(d.take(int(n)))
}

// optionalStr reads a remote_string: a flag and, if it is set, a string.
func (d *decoder) optionalStr() string {
	if d.u32() == 0 {
		return ""
	}
	return d.str()
}

// ErrRefused means that a peer sent a message that it may not send, or that violates the protocol.
var ErrRefused = errors.New("refused to forward a message of libvirt's protocol")

// migrationCalls are all calls to the daemon of a migration's target: to open and close a connection, to prepare the
// guest, and to complete it. Each is allowed once, so that a source that stays connected cannot affect the guest after
// its migration.
var migrationCalls = []int32{procConnectOpen, procConnectClose, procMigratePrepare, procMigrateFinish}

// Direction reports whether a message may be forwarded in one direction.
type Direction func(program uint32, proc int32, kind uint32) bool

// MigrationCalls returns a Direction for one connection that allows only the calls of a client that migrates one guest
// to the daemon.
func MigrationCalls() Direction {
	left := slices.Clone(migrationCalls)
	return func(program uint32, proc int32, kind uint32) bool {
		switch program {
		case programKeepAlive:
			return kind == typeMessage
		case programRemote:
			i := slices.Index(left, proc)
			if kind != typeCall || i < 0 {
				return false
			}
			left = slices.Delete(left, i, i+1)
			return true
		default:
			return false
		}
	}
}

// MigrationResponses is a Direction that allows what the daemon sends to such a client: responses and the event that it
// closes the connection.
func MigrationResponses(program uint32, _ int32, kind uint32) bool {
	switch program {
	case programKeepAlive:
		return kind == typeMessage
	case programRemote:
		return kind == typeReply || kind == typeMessage
	default:
		return false
	}
}

// Pass forwards messages as long as the direction allows them. It returns ErrRefused at the first other message, of
// which it forwards nothing, io.EOF if the connection ends between two messages, or another error.
func Pass(to io.Writer, from io.Reader, direction Direction) error {
	// The longest message has the XML of a domain with libvirt's cookie. It is forwarded piece by piece, so it is never in
	// memory.
	buffer := make([]byte, 32<<10)
	for {
		h, size, err := readHeader(from, buffer)
		if err != nil {
			return err
		}
		if !direction(h.program, h.proc, h.kind) {
			return fmt.Errorf("%w: program %#x, procedure %d, type %d is not part of a migration", ErrRefused, h.program, h.proc,
				h.kind)
		}
		if err := copyMessage(to, from, buffer, headerSize, size); err != nil {
			return err
		}
	}
}
