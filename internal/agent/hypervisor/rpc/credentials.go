// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// credentialsPause is the interval at which the Secrets are read, as in KubeVirt. The kubelet updates its copies about
// once a minute.
const credentialsPause = 15 * time.Second

// credentialsSync sets credentials in the guest. It runs in its own goroutine, so that a guest agent that does not
// respond does not block the reconciler.
type credentialsSync struct {
	start   sync.Once
	trigger chan struct{}
	state   atomic.Pointer[hypervisor.CredentialsState]
}

// Credentials returns whether the guest has its credentials, or nil if that was not tried yet. After the first call the
// Conn sets them whenever the result of read has changed, and calls the function given to Watch when the state changes.
func (c *Conn) Credentials(domain string, read func() (hypervisor.Credentials, error)) *hypervisor.CredentialsState {
	c.credentials.start.Do(func() { go c.keepCredentials(domain, read) })
	return c.credentials.state.Load()
}

func (c *Conn) keepCredentials(domain string, read func() (hypervisor.Credentials, error)) {
	keeper := &hypervisor.CredentialsKeeper{}
	apply := func(wanted hypervisor.Credentials) error {
		return c.setCredentials(c.relay.ctx, domain, wanted)
	}
	for {
		if state := keeper.Step(time.Now(), read, apply); state != nil {
			if before := c.credentials.state.Swap(state); before == nil || *before != *state {
				c.notify()
			}
		}
		select {
		case <-c.Done():
			return
		case <-c.credentials.trigger:
			keeper.Forget()
		case <-time.After(credentialsPause):
		}
	}
}

// setCredentials sets the credentials of each user separately, so that a user that does not exist in the guest does not
// affect the others.
func (c *Conn) setCredentials(ctx context.Context, domain string, wanted hypervisor.Credentials) error {
	var calls []func() error
	for _, user := range slices.Sorted(maps.Keys(wanted.Keys)) {
		calls = append(calls, func() error {
			return credentialError("SSH keys", user, c.setKeys(ctx, domain, user, wanted.Keys[user]))
		})
	}
	for _, user := range slices.Sorted(maps.Keys(wanted.Passwords)) {
		calls = append(calls, func() error {
			return credentialError("password", user, c.withAgent(ctx, domain, "set a password", func(d *libvirt.Domain) error {
				return d.SetUserPassword(user, wanted.Passwords[user], 0)
			}))
		})
	}
	return callAll(calls)
}

// callAll makes one call after the other. It stops when the guest agent is offline, because every further call would
// time out.
func callAll(calls []func() error) error {
	var errs []error
	for _, call := range calls {
		err := call()
		if errors.Is(err, errAgentOffline) || errors.Is(err, hypervisor.ErrUnreachable) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

var errAgentOffline = errors.New(hypervisor.AgentOffline)

func credentialError(what, user string, err error) error {
	switch {
	case err == nil:
		return nil
	case isCode(err, libvirt.ERR_AGENT_UNRESPONSIVE):
		return errAgentOffline
	default:
		return fmt.Errorf("the guest does not take the %s of user %q: %w", what, user, err)
	}
}

// setKeys replaces the SSH keys of a user. Guest agents before QEMU 5.2 have no command for that.
func (c *Conn) setKeys(ctx context.Context, domain, user string, keys []string) error {
	err := c.withAgent(ctx, domain, "set SSH keys", func(d *libvirt.Domain) error {
		// Without flags the keys replace those that the user has.
		return d.AuthorizedSSHKeysSet(user, keys, 0)
	})
	if err == nil || isCode(err, libvirt.ERR_AGENT_UNRESPONSIVE) || errors.Is(err, hypervisor.ErrUnreachable) {
		return err
	}
	old := false
	unsupported := c.converse(ctx, domain, guestAgentTimeout, func(ctx context.Context, g guest) error {
		about := &hypervisor.GuestAgent{}
		if err := g.about(ctx, about); err != nil {
			return err
		}
		old = !slices.ContainsFunc(about.Commands,
			func(c hypervisor.GuestCommand) bool { return c.Name == "guest-ssh-add-authorized-keys" })
		if !old {
			return nil
		}
		return writeKeys(ctx, user, keys,
			func(ctx context.Context, command string, arguments map[string]any, into any) error {
				response, err := g.executeWith(ctx, command, arguments, agentTimeout*time.Second)
				if err != nil {
					return err
				}
				return parseResponse(response, into)
			})
	})
	if old {
		return unsupported
	}
	return err
}

const (
	// keysScript replaces the SSH keys of the user who runs it by those in its input. That user cannot make it write the
	// files of others, as they could if root followed their links.
	keysScript = `umask 077 && mkdir -p "$HOME/.ssh" && cat > "$HOME/.ssh/authorized_keys.new" && ` +
		`mv -f "$HOME/.ssh/authorized_keys.new" "$HOME/.ssh/authorized_keys"`
	// commandPause is the time between two reads of the state of a command in the guest. The guest agent has no event for
	// its end.
	commandPause = 200 * time.Millisecond
)

// writeKeys writes the SSH keys of a user with a command in the guest. Source of the arguments: QEMU
// qga/qapi-schema.json, guest-exec.
func writeKeys(
	ctx context.Context, user string, keys []string, call func(context.Context, string, map[string]any, any) error,
) error {
	if strings.HasPrefix(user, "-") {
		return errors.New("no user has a name that begins with a dash")
	}
	var started struct {
		PID int64 `json:"pid"`
	}
	input := base64.StdEncoding.EncodeToString([]byte(strings.Join(keys, "\n") + "\n"))
	err := call(ctx, "guest-exec", map[string]any{
		"path": "su", "arg": []string{"-s", "/bin/sh", "-c", keysScript, user}, "input-data": input, "capture-output": true,
	}, &started)
	if err != nil {
		return err
	}
	for {
		var status struct {
			Exited bool   `json:"exited"`
			Code   *int   `json:"exitcode"`
			Err    []byte `json:"err-data"`
		}
		if err := call(ctx, "guest-exec-status", map[string]any{"pid": started.PID}, &status); err != nil {
			return err
		}
		switch {
		case status.Exited && status.Code != nil && *status.Code == 0:
			return nil
		case status.Exited:
			return fmt.Errorf("the guest does not write the file .ssh/authorized_keys: %s",
				hypervisor.CleanLine(string(status.Err), maxCommandError))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the guest does not write the file .ssh/authorized_keys in time: %w", hypervisor.ErrGuestSilent)
		case <-time.After(commandPause):
		}
	}
}

// maxCommandError is the limit for the text with which a command in the guest has failed, in bytes.
const maxCommandError = 256
