// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

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
