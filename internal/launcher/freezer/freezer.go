// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package freezer freezes and thaws the guest's file systems from inside its Pod, for backup tools that run a command
// in the Pod before and after a backup. It does what virt-handler does for the subresources freeze and unfreeze,
// through the Pod's libvirtd, and records it in the same metadata of the domain: virt-handler reads them, reports the
// freeze, and thaws the guest after the timeout.
package freezer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// commandTimeout bounds reading the freeze status from the guest agent.
	commandTimeout = 5 * time.Second
	// freezeTimeout bounds a freeze, in which the guest writes its dirty data. It is shorter than the hook's timeout of
	// a minute.
	freezeTimeout = 45 * time.Second
)

// Errors for which KubeVirt's virt-freezer succeeds: the backup continues without a freeze.
var (
	// ErrNoAgent means that the guest agent does not respond.
	ErrNoAgent = errors.New("the guest agent does not respond")
	// ErrPaused means that the guest is paused: it neither writes nor responds.
	ErrPaused = errors.New("the guest is paused")
	// ErrNothing means that the guest has no file systems that can be frozen.
	ErrNothing = errors.New("the guest has no file systems that can be frozen")
)

// Hypervisor is the part of libvirtwire.Client that a freeze needs.
type Hypervisor interface {
	Lookup(ctx context.Context, name string) (libvirtwire.Domain, error)
	State(ctx context.Context, domain libvirtwire.Domain) (libvirtwire.State, int32, error)
	AgentCommand(ctx context.Context, domain libvirtwire.Domain, command string, wait time.Duration) (string, error)
	SetMetadata(ctx context.Context, domain libvirtwire.Domain, element, prefix, namespace string) error
}

// Freezer freezes and thaws one guest.
type Freezer struct {
	// Hypervisor is the Pod's libvirtd.
	Hypervisor Hypervisor
	// Domain is the name of the guest's domain.
	Domain string
	// SyncState writes to the disk what the Pod has written beside the guest, the TPM's and EFI's state.
	SyncState func() error
}

// Freeze freezes the guest's file systems until a time; zero means until Thaw. A guest that is frozen stays frozen,
// until the new time. The error may be ErrNoAgent, ErrPaused or ErrNothing. When it returns, the persistent state of
// TPM and EFI is on its disk, also if the guest cannot be frozen: a backup tool takes snapshots of all claims of the
// Pod then.
func (f Freezer) Freeze(ctx context.Context, until time.Time) error {
	domain, err := f.freeze(ctx, until)
	if err != nil && !errors.Is(err, ErrNoAgent) && !errors.Is(err, ErrPaused) && !errors.Is(err, ErrNothing) {
		return err
	}
	syncErr := f.SyncState()
	switch {
	case syncErr == nil:
		return err
	case err == nil: // The hook fails with the guest frozen: virt-handler thaws it.
		return errors.Join(syncErr, f.note(ctx, domain, launcherpod.FreezeNote(time.Now())))
	default:
		return syncErr
	}
}

func (f Freezer) freeze(ctx context.Context, until time.Time) (libvirtwire.Domain, error) {
	domain, frozen, err := f.find(ctx)
	if err != nil {
		return domain, err
	}
	// The freeze is recorded first: otherwise the guest would stay frozen if this process were killed.
	if err := f.note(ctx, domain, launcherpod.FreezeNote(until)); err != nil {
		return domain, fmt.Errorf("record the freeze: %w", err)
	}
	if frozen {
		return domain, nil
	}
	count, err := f.agentCommand(ctx, domain, "guest-fsfreeze-freeze", freezeTimeout)
	switch {
	case err == nil && string(count) == "0":
		if frozen, err = f.frozen(ctx, domain); err == nil && !frozen {
			return domain, errors.Join(ErrNothing, f.note(ctx, domain, ""))
		}
		return domain, err
	case err == nil:
		return domain, nil
	}
	// The guest may have received the command, and freeze after the timeout: virt-handler thaws it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	return domain, errors.Join(fmt.Errorf("freeze the guest: %w", err),
		f.note(ctx, domain, launcherpod.FreezeNote(time.Now())))
}

// Thaw thaws the guest's file systems. It does nothing if they are not frozen: the guest's hooks must not run twice.
// Errors are those of Freeze.
func (f Freezer) Thaw(ctx context.Context) error {
	domain, frozen, err := f.find(ctx)
	if err != nil {
		return err
	}
	if frozen {
		if _, err := f.agentCommand(ctx, domain, "guest-fsfreeze-thaw", freezeTimeout); err != nil {
			return fmt.Errorf("thaw the guest: %w", err)
		}
	}
	if err := f.note(ctx, domain, ""); err != nil {
		return fmt.Errorf("remove the record of the freeze: %w", err)
	}
	return nil
}

// find returns the guest's domain and whether the guest is frozen.
func (f Freezer) find(ctx context.Context) (libvirtwire.Domain, bool, error) {
	domain, err := f.Hypervisor.Lookup(ctx, f.Domain)
	if err != nil {
		return domain, false, fmt.Errorf("find the guest: %w", err)
	}
	state, _, err := f.Hypervisor.State(ctx, domain)
	if err != nil {
		return domain, false, fmt.Errorf("read the guest's state: %w", err)
	}
	if state == libvirtwire.StatePaused {
		return domain, false, ErrPaused
	}
	frozen, err := f.frozen(ctx, domain)
	var refused *libvirtwire.Error
	if errors.As(err, &refused) && (refused.Code == libvirtwire.CodeAgentUnresponsive ||
		refused.Code == libvirtwire.CodeArgumentUnsupported) {
		return domain, false, ErrNoAgent
	}
	return domain, frozen, err
}

// frozen reports whether the guest agent reports the guest as frozen.
func (f Freezer) frozen(ctx context.Context, domain libvirtwire.Domain) (bool, error) {
	status, err := f.agentCommand(ctx, domain, "guest-fsfreeze-status", commandTimeout)
	if err != nil {
		return false, fmt.Errorf("read the guest's freeze status: %w", err)
	}
	// Source: qemu qga/qapi-schema.json, GuestFsfreezeStatus.
	return string(status) == `"frozen"`, nil
}

// agentCommand sends the guest agent a command without arguments and returns the result: a number of file systems, or a
// status.
func (f Freezer) agentCommand(
	ctx context.Context, domain libvirtwire.Domain, command string, wait time.Duration,
) (json.RawMessage, error) {
	response, err := f.Hypervisor.AgentCommand(ctx, domain, `{"execute":"`+command+`"}`, wait)
	if err != nil {
		return nil, err
	}
	var result struct {
		Return json.RawMessage `json:"return"`
	}
	if err := json.Unmarshal([]byte(response), &result); err != nil {
		return nil, fmt.Errorf("read the response of the guest agent: %w", err)
	}
	return result.Return, nil
}

func (f Freezer) note(ctx context.Context, domain libvirtwire.Domain, element string) error {
	err := f.Hypervisor.SetMetadata(ctx, domain, element, launcherpod.FreezePrefix, launcherpod.FreezeURI)
	var refused *libvirtwire.Error
	if element == "" && errors.As(err, &refused) && refused.Code == libvirtwire.CodeNoDomainMetadata {
		return nil
	}
	return err
}
