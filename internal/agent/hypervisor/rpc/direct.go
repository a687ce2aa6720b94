// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// openTimeout bounds how long a stream may take to open.
const openTimeout = queryTimeout

// direct makes a separate connection to the Pod's libvirtd without libvirt's C library, and finds the domain.
//
// A stream has its own connection: data that the agent does not read stays in the launcher instead of the agent's
// memory, descriptors can be passed, and closing it closes nothing else. Requests to the guest agent have their own
// because the guest determines the length of the responses.
func (c *Conn) direct(ctx context.Context, domain string) (*libvirtwire.Client, libvirtwire.Domain, error) {
	launcher, err := dialLauncher(ctx, c.options, c.pod.UID, false)
	if err != nil {
		return nil, libvirtwire.Domain{}, err
	}
	client, err := libvirtwire.OpenLimited(ctx, launcher, largeLimits(ctx))
	if err != nil {
		return nil, libvirtwire.Domain{}, fromClient("connect", err)
	}
	found, err := client.Lookup(ctx, domain)
	if err != nil {
		client.Close()
		return nil, libvirtwire.Domain{}, fromClient("find the domain", err)
	}
	return client, found, nil
}

// within makes a direct connection for a function and closes it afterwards.
func (c *Conn) within(ctx context.Context, limit time.Duration, domain, what string,
	do func(context.Context, *libvirtwire.Client, libvirtwire.Domain) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ctx, end := c.startConversation(ctx)
	defer end()
	client, found, err := c.direct(ctx, domain)
	if err != nil {
		return err
	}
	defer client.Close()
	return fromClient(what, do(ctx, client, found))
}

// fromClient wraps a failure of the connection, and error responses about the guest, with the errors of package
// hypervisor.
func fromClient(what string, err error) error {
	var response *libvirtwire.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, hypervisor.ErrGuestSilent), errors.Is(err, hypervisor.ErrGuestRefused),
		errors.Is(err, hypervisor.ErrUnreachable):
		// It is wrapped already.
		return err
	case !errors.As(err, &response):
		if errors.Is(err, libvirtwire.ErrClosed) || errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrUnreachable, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	case response.Code == libvirtwire.CodeNoDomain:
		return hypervisor.ErrNoDomain
	case response.Code == libvirtwire.CodeOperationInvalid:
		return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrNotRunning, err)
	case response.Code == libvirtwire.CodeAgentUnresponsive, response.Code == libvirtwire.CodeAgentCommandTimeout:
		return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrGuestSilent, err)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// OpenConsole opens the guest's first serial port. A client that has it open is disconnected.
func (c *Conn) OpenConsole(ctx context.Context, domain string) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	client, found, err := c.direct(ctx, domain)
	if err != nil {
		return nil, err
	}
	stream, err := client.OpenConsole(ctx, found, "", libvirtwire.ConsoleForce)
	if err != nil {
		client.Close()
		return nil, fromClient("open the console", err)
	}
	return stream, nil
}
