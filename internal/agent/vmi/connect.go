// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/outcome"
)

// domainReader reads a domain.
type domainReader interface {
	// Domain returns the domain of a name, or an error that wraps hypervisor.ErrNoDomain.
	Domain(ctx context.Context, name string) (*hypervisor.Domain, error)
}

// connect opens the connection to the Pod's libvirtd. While it is being made, the reconciliation waits and reports nothing. If it
// cannot be made, the guest's state is unknown and nothing else is changed.
func (r *Reconciler) connect(s *scope) error {
	connection, err := r.Connections.Open(hypervisor.PodRef{UID: s.pod.UID, VMI: s.key})
	if errors.Is(err, hypervisor.ErrConnecting) {
		return &outcome.Wait{Reason: "libvirtd of the launcher Pod"}
	}
	if err != nil {
		// The VMI is enqueued when the connection is back.
		return &unreachable{err: err}
	}
	s.connection = connection
	return nil
}

// readDomain reads the domain into the scope.
func readDomain(ctx context.Context, s *scope, domains domainReader) error {
	domain, err := domains.Domain(ctx, s.domainName())
	switch {
	case errors.Is(err, hypervisor.ErrNoDomain):
		s.domainRead = true
		return nil
	case err != nil:
		return fromConnection(err)
	}
	s.domainRead, s.domain = true, domain
	return nil
}

// unreachable is a Wait for the hypervisor that the status reports to the user.
type unreachable struct{ err error }

// Error returns why the hypervisor cannot be reached.
func (u *unreachable) Error() string { return u.err.Error() }

// Unwrap makes it a Wait.
func (u *unreachable) Unwrap() []error {
	return []error{&outcome.Wait{Reason: "a response of the launcher Pod's libvirtd"}, u.err}
}

// fromConnection makes an error about a broken connection, which is reconnected without a retry of the reconciliation, a Wait.
func fromConnection(err error) error {
	return outcome.Map(err, func(err error) error {
		if errors.Is(err, hypervisor.ErrUnreachable) {
			return fmt.Errorf("%w: %w", &outcome.Wait{Reason: "the connection to libvirtd"}, err)
		}
		return err
	})
}
