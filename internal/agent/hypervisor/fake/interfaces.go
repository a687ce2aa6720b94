// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fake

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// UpdateInterface replaces an interface of the running domain. As libvirt, it finds it by its alias and refuses another MAC address,
// and notifies nobody.
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
