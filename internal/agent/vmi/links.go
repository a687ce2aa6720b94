// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// States of a link in a domain and in status.interfaces[].linkState.
const (
	linkUp   = "up"
	linkDown = "down"
)

// interfaceUpdater changes interfaces of a running domain.
type interfaceUpdater interface {
	phase.DomainReader
	// UpdateInterface changes an interface of a running domain, which is found by its alias.
	UpdateInterface(ctx context.Context, name string, nic *libvirtxml.DomainInterface) error
}

// setLinks connects and disconnects the interfaces of a running guest according to the spec, which follows the VM's template. It
// compares the spec with the running domain, so it also works after the agent was replaced. libvirt changes no devices during a
// migration, which sends the guest with its current links: afterwards the node that has the guest changes them.
func (r *Reconciler) setLinks(ctx context.Context, s *scope, guest interfaceUpdater) error {
	if s.VMI == nil || !s.Domain.Active() || s.Domain.Transient() || vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	var errs []error
	changed := false
	for i := range s.VMI.Spec.Domain.Devices.Interfaces {
		iface := &s.VMI.Spec.Domain.Devices.Interfaces[i]
		nic := withOtherLink(iface, s.Domain.XML)
		if nic == nil {
			continue
		}
		errs = append(errs, s.Attempt("set the link of "+iface.Name, phase.ReasonSynchronizing, func() error {
			changed = true
			if err := guest.UpdateInterface(ctx, s.DomainName(), nic); err != nil {
				return phase.FromConnection(fmt.Errorf("set the link of interface %q %s: %w", iface.Name, nic.Link.State, err))
			}
			return nil
		}))
	}
	if !changed {
		return errors.Join(errs...)
	}
	// The status reports the links that the guest has now.
	err := s.ReadDomain(ctx, guest)
	if !s.Domain.Active() {
		return err // It has ended meanwhile.
	}
	return errors.Join(errors.Join(errs...), err)
}

// withOtherLink returns an interface of the running domain with the link that the spec requests, or nil if it has that link or the
// domain has no such interface. Everything else is what libvirt reported, so that only the link changes.
func withOtherLink(iface *v1.Interface, live *libvirtxml.Domain) *libvirtxml.DomainInterface {
	nic := findInterface(live, domain.InterfaceAlias(iface.Name))
	if nic == nil || iface.State == v1.InterfaceStateAbsent {
		return nil
	}
	wanted := linkUp
	if iface.State == v1.InterfaceStateLinkDown {
		wanted = linkDown
	}
	if linkOf(nic) == wanted {
		return nil
	}
	updated := *nic
	updated.Link = &libvirtxml.DomainInterfaceLink{State: wanted}
	return &updated
}

// linkOf returns the state of the link of a domain's interface.
func linkOf(nic *libvirtxml.DomainInterface) string {
	if nic.Link != nil && nic.Link.State == linkDown {
		return linkDown
	}
	return linkUp
}
