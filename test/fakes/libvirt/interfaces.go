// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// UpdateInterface replaces an interface of the running domain. As libvirt, it finds it by its alias and refuses another
// MAC address, and notifies nobody.
func (l *Launcher) UpdateInterface(ctx context.Context, name string, nic *libvirtxml.DomainInterface) error {
	if err := l.enter(ctx, "interface"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.domain == nil || l.domain.XML.Name != name:
		return hypervisor.ErrNoDomain
	case !l.domain.Active():
		return hypervisor.ErrNotRunning
	case nic.Alias == nil || nic.MAC == nil:
		return errors.New("the interface has no alias or no MAC address")
	}
	for i := range l.domain.XML.Devices.Interfaces {
		has := &l.domain.XML.Devices.Interfaces[i]
		if has.Alias == nil || has.Alias.Name != nic.Alias.Name {
			continue
		}
		if has.MAC == nil || has.MAC.Address != nic.MAC.Address {
			return fmt.Errorf("interface %s has another MAC address than %s", nic.Alias.Name, nic.MAC.Address)
		}
		*has = *nic
		return l.respond("interface")
	}
	return fmt.Errorf("there is no interface %s", nic.Alias.Name)
}

// AttachInterface adds an interface to the running domain. As libvirt, it refuses an alias or a MAC address that the
// domain has.
func (l *Launcher) AttachInterface(ctx context.Context, name string, nic *libvirtxml.DomainInterface) error {
	return l.onInterfaces(ctx, "attach interface", name,
		func(list []libvirtxml.DomainInterface) ([]libvirtxml.DomainInterface, error) {
			if nic.Alias == nil || nic.MAC == nil {
				return nil, errors.New("the interface has no alias or no MAC address")
			}
			for i := range list {
				if list[i].Alias.Name == nic.Alias.Name || list[i].MAC.Address == nic.MAC.Address {
					return nil, fmt.Errorf("interface %s or its MAC address exists", nic.Alias.Name)
				}
			}
			return append(slices.Clone(list), *nic), nil
		})
}

// DetachInterface removes an interface of the running domain once the guest releases it, which a guest does at once
// unless KeepInterfaces was called.
func (l *Launcher) DetachInterface(ctx context.Context, name, alias string) error {
	return l.onInterfaces(ctx, "detach interface", name,
		func(list []libvirtxml.DomainInterface) ([]libvirtxml.DomainInterface, error) {
			at := slices.IndexFunc(list, func(nic libvirtxml.DomainInterface) bool { return nic.Alias.Name == alias })
			switch {
			case at < 0:
				return nil, fmt.Errorf("there is no interface %s", alias)
			case l.keepsInterfaces:
				return list, nil
			default:
				return slices.Delete(slices.Clone(list), at, at+1), nil
			}
		})
}

// KeepInterfaces lets the guest ignore requests to release an interface.
func (l *Launcher) KeepInterfaces(keep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keepsInterfaces = keep
}

// onInterfaces changes the interfaces of the running domain.
func (l *Launcher) onInterfaces(
	ctx context.Context, operation, name string,
	change func([]libvirtxml.DomainInterface) ([]libvirtxml.DomainInterface, error),
) error {
	if err := l.enter(ctx, operation); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.domain == nil || l.domain.XML.Name != name:
		return hypervisor.ErrNoDomain
	case !l.domain.Active():
		return hypervisor.ErrNotRunning
	}
	list, err := change(l.domain.XML.Devices.Interfaces)
	if err != nil {
		return err
	}
	l.domain.XML.Devices.Interfaces = list
	return l.respond(operation)
}
