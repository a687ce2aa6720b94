// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package freezer freezes and thaws the guest's file systems from inside its Pod, for tools that back up volumes and run a command
// in the Pod before and after. It does what virt-handler does for the subresources freeze and unfreeze, over the Pod's own libvirtd,
// and notes it in the same place: virt-handler sees the note, reports it, and thaws the guest when its time is up.
package freezer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

const (
	// askWait is how long the guest's agent may take to say whether the guest is frozen.
	askWait = 5 * time.Second
	// freezeWait is how long the guest may take to write what it has. It ends before the hook's own timeout of a minute.
	freezeWait = 45 * time.Second
)

// What there is nothing to do for. KubeVirt's virt-freezer succeeds in both cases: a backup goes on without a freeze.
var (
	// ErrNoAgent means that no agent answers in the guest.
	ErrNoAgent = errors.New("no agent answers in the guest")
	// ErrPaused means that the guest is paused: it writes nothing, and answers nothing.
	ErrPaused = errors.New("the guest is paused")
)

// Hypervisor is the part of libvirtrpc.Client that a freeze needs.
type Hypervisor interface {
	Lookup(ctx context.Context, name string) (libvirtrpc.Domain, error)
	State(ctx context.Context, domain libvirtrpc.Domain) (libvirtrpc.State, int32, error)
	AgentCommand(ctx context.Context, domain libvirtrpc.Domain, command string, wait time.Duration) (string, error)
	SetMetadata(ctx context.Context, domain libvirtrpc.Domain, element, prefix, namespace string) error
}

// Freezer freezes and thaws one guest.
type Freezer struct {
	// Hypervisor is the Pod's libvirtd.
	Hypervisor Hypervisor
	// Domain is the guest's name there.
	Domain string
}

// Freeze freezes the guest's file systems until a time; zero means until somebody thaws them. One that is frozen stays so, until the new
// time. Errors are ErrNoAgent, ErrPaused, and what went wrong.
func (f Freezer) Freeze(ctx context.Context, until time.Time) error {
	domain, frozen, err := f.find(ctx)
	if err != nil {
		return err
	}
	// The note comes first: a guest that is frozen and has none would stay frozen if this process ended now.
	if err := f.note(ctx, domain, launcherpod.FreezeNote(until)); err != nil {
		return fmt.Errorf("note the freeze: %w", err)
	}
	if frozen {
		return nil
	}
	_, err = f.ask(ctx, domain, "guest-fsfreeze-freeze", freezeWait)
	if err == nil {
		return nil
	}
	// The guest may have been told, and freeze although nobody waits for it any more: virt-handler thaws it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWait)
	defer cancel()
	return errors.Join(fmt.Errorf("freeze the guest: %w", err), f.note(ctx, domain, launcherpod.FreezeNote(time.Now())))
}

// Thaw thaws the guest's file systems. One that is not frozen is left alone: its hooks must not run twice. Errors are those of Freeze.
func (f Freezer) Thaw(ctx context.Context) error {
	domain, frozen, err := f.find(ctx)
	if err != nil {
		return err
	}
	if frozen {
		if _, err := f.ask(ctx, domain, "guest-fsfreeze-thaw", freezeWait); err != nil {
			return fmt.Errorf("thaw the guest: %w", err)
		}
	}
	if err := f.note(ctx, domain, ""); err != nil {
		return fmt.Errorf("take the note of the freeze away: %w", err)
	}
	return nil
}

// find finds the guest and asks whether it is frozen.
func (f Freezer) find(ctx context.Context) (libvirtrpc.Domain, bool, error) {
	domain, err := f.Hypervisor.Lookup(ctx, f.Domain)
	if err != nil {
		return domain, false, fmt.Errorf("find the guest: %w", err)
	}
	state, _, err := f.Hypervisor.State(ctx, domain)
	if err != nil {
		return domain, false, fmt.Errorf("read the guest's state: %w", err)
	}
	if state == libvirtrpc.StatePaused {
		return domain, false, ErrPaused
	}
	answer, err := f.ask(ctx, domain, "guest-fsfreeze-status", askWait)
	var refused *libvirtrpc.Error
	if errors.As(err, &refused) && (refused.Code == libvirtrpc.CodeAgentUnresponsive || refused.Code == libvirtrpc.CodeArgumentUnsupported) {
		return domain, false, ErrNoAgent
	}
	if err != nil {
		return domain, false, fmt.Errorf("ask whether the guest is frozen: %w", err)
	}
	// Source: qemu qga/qapi-schema.json, GuestFsfreezeStatus.
	return domain, answer == "frozen", nil
}

// ask gives the guest's agent a command without arguments and returns what it answers, if that is a text.
func (f Freezer) ask(ctx context.Context, domain libvirtrpc.Domain, command string, wait time.Duration) (string, error) {
	said, err := f.Hypervisor.AgentCommand(ctx, domain, `{"execute":"`+command+`"}`, wait)
	if err != nil {
		return "", err
	}
	var answer struct {
		Return json.RawMessage `json:"return"`
	}
	if err := json.Unmarshal([]byte(said), &answer); err != nil {
		return "", fmt.Errorf("read the agent's answer: %w", err)
	}
	var text string
	_ = json.Unmarshal(answer.Return, &text) // The others answer with a number of file systems.
	return text, nil
}

func (f Freezer) note(ctx context.Context, domain libvirtrpc.Domain, element string) error {
	err := f.Hypervisor.SetMetadata(ctx, domain, element, launcherpod.FreezePrefix, launcherpod.FreezeURI)
	var refused *libvirtrpc.Error
	if element == "" && errors.As(err, &refused) && refused.Code == libvirtrpc.CodeNoDomainMetadata {
		return nil
	}
	return err
}
