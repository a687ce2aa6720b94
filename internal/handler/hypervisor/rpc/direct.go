// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// openTimeout bounds how long a stream may take to open.
const openTimeout = queryTimeout

// direct makes a connection to the Pod's libvirtd for one purpose, past libvirt's C library, and finds the domain.
//
// A stream has one to itself: what is not read of it stays with the launcher instead of in the agent's memory, a descriptor
// can go along, and cutting it cuts nothing else. Questions to the guest's agent have one because their answers are as long
// as the guest wants.
func (c *Conn) direct(ctx context.Context, domain string) (*libvirtrpc.Client, libvirtrpc.Domain, error) {
	launcher, process, err := dialLauncher(c.options, c.pod.UID)
	if err != nil {
		return nil, libvirtrpc.Domain{}, err
	}
	_ = process.Dir.Close()
	client, err := libvirtrpc.OpenLimited(ctx, launcher, limits(ctx))
	if err != nil {
		return nil, libvirtrpc.Domain{}, fromClient("connect", err)
	}
	found, err := client.Lookup(ctx, domain)
	if err != nil {
		client.Close()
		return nil, libvirtrpc.Domain{}, fromClient("find the domain", err)
	}
	return client, found, nil
}

// within makes a connection for something that ends soon.
func (c *Conn) within(ctx context.Context, limit time.Duration, domain, what string, do func(context.Context, *libvirtrpc.Client, libvirtrpc.Domain) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ctx, end := c.begin(ctx)
	defer end()
	client, found, err := c.direct(ctx, domain)
	if err != nil {
		return err
	}
	defer client.Close()
	return fromClient(what, do(ctx, client, found))
}

// fromClient tells a connection that failed from an answer, and answers about the guest from others.
func fromClient(what string, err error) error {
	var answer *libvirtrpc.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, hypervisor.ErrGuestSilent), errors.Is(err, hypervisor.ErrGuestRefused), errors.Is(err, hypervisor.ErrUnreachable):
		// It was told apart already.
		return err
	case !errors.As(err, &answer):
		if errors.Is(err, libvirtrpc.ErrClosed) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrUnreachable, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	case answer.Code == libvirtrpc.CodeNoDomain:
		return hypervisor.ErrNoDomain
	case answer.Code == libvirtrpc.CodeOperationInvalid:
		return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrNotRunning, err)
	case answer.Code == libvirtrpc.CodeAgentUnresponsive, answer.Code == libvirtrpc.CodeAgentCommandTimeout:
		return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrGuestSilent, err)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// OpenConsole opens the guest's first serial port. Whoever has it loses it.
func (c *Conn) OpenConsole(ctx context.Context, domain string) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	client, found, err := c.direct(ctx, domain)
	if err != nil {
		return nil, err
	}
	stream, err := client.OpenConsole(ctx, found, "", libvirtrpc.ConsoleForce)
	if err != nil {
		client.Close()
		return nil, fromClient("open the console", err)
	}
	return stream, nil
}
