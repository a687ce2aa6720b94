// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// connect gets the connection to the Pod's hypervisor. While it is being made there is nothing to do and nothing to
// say; when it cannot be made, the guest's state is unknown, and nothing follows from that.
func (r *Reconciler) connect(_ context.Context, s *scope) error {
	machine, err := r.Machines.Open(hypervisor.PodRef{UID: s.pod.UID, VMI: s.key})
	if errors.Is(err, hypervisor.ErrConnecting) {
		return &Wait{Reason: "libvirtd of the launcher Pod"}
	}
	if err != nil {
		// The connection enqueues the VMI when it is back.
		return &unreachable{err: err}
	}
	s.machine = machine
	return nil
}

// look asks for the domain.
func (r *Reconciler) look(ctx context.Context, s *scope) error {
	domain, err := s.machine.Domain(ctx, s.domainName())
	switch {
	case errors.Is(err, hypervisor.ErrNoDomain):
		s.looked = true
		return nil
	case err != nil:
		return fromMachine(err)
	}
	s.looked, s.domain = true, domain
	return nil
}

// unreachable is a wait for the hypervisor that the user should know of.
type unreachable struct{ err error }

// Error says why the hypervisor cannot be reached.
func (u *unreachable) Error() string { return u.err.Error() }

// Unwrap makes it a Wait.
func (u *unreachable) Unwrap() []error {
	return []error{&Wait{Reason: "libvirtd of the launcher Pod to answer"}, u.err}
}

// fromMachine tells a broken connection, which mends itself, from a refusal.
func fromMachine(err error) error {
	if errors.Is(err, hypervisor.ErrUnreachable) {
		return fmt.Errorf("%w: %w", &Wait{Reason: "the connection to libvirtd"}, err)
	}
	return err
}
