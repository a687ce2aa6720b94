// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// credentialsPause is the interval at which the Secrets are read, as in KubeVirt. The kubelet updates its copies about once
// a minute.
const credentialsPause = 15 * time.Second

// credentialsSync sets credentials in the guest. It runs in its own goroutine, so that a guest agent that does not respond does
// not block the reconciler.
type credentialsSync struct {
	start   sync.Once
	trigger chan struct{}
	state   atomic.Pointer[hypervisor.CredentialsState]
}

// Credentials returns whether the guest has its credentials, or nil if that was not tried yet. After the first call the Conn sets
// them whenever the result of read has changed, and calls the function given to Watch when the state changes.
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

// setCredentials sets the credentials of each user separately, so that a user that does not exist in the guest does not affect
// the others.
func (c *Conn) setCredentials(ctx context.Context, domain string, wanted hypervisor.Credentials) error {
	var calls []func() error
	for _, user := range slices.Sorted(maps.Keys(wanted.Keys)) {
		calls = append(calls, func() error {
			return credentialError("SSH keys", user, c.withAgent(ctx, domain, "set SSH keys", func(d *libvirt.Domain) error {
				// Without flags the keys replace those that the user has.
				return d.AuthorizedSSHKeysSet(user, wanted.Keys[user], 0)
			}))
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

// callAll makes one call after the other. It stops when the guest agent is offline, because every further call would time out.
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
