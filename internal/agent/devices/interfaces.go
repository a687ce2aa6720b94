// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonHotPlugNIC is the reason of the condition Synchronized when libvirt refuses to plug or unplug an interface of
// the guest.
const ReasonHotPlugNIC = "HotPlugNetworkInterfaceError"

// unplugRetry is the delay before the guest is requested again to release an interface: it may have been booting.
const unplugRetry = 10 * time.Second

// interfacePlugger plugs interfaces into a running domain and unplugs them.
type interfacePlugger interface {
	phase.DomainReader
	// AttachInterface plugs an interface into a running guest.
	AttachInterface(ctx context.Context, name string, nic *libvirtxml.DomainInterface) error
	// DetachInterface requests that a running guest releases an interface, by its alias. It does not wait until the
	// guest has done so.
	DetachInterface(ctx context.Context, name, alias string) error
}

// PlugInterfaces plugs the interfaces of a running guest's spec, as far as its Pod has their networks, and unplugs
// those that are absent. It depends only on the spec, the domain and the Pod, so it also works after the agent was
// replaced, and after a migration to a Pod with other networks.
func (s *Guest) PlugInterfaces(ctx context.Context, guest interfacePlugger) error {
	if !s.Assigned || s.VMI.DeletionTimestamp != nil || s.Pod.DeletionTimestamp != nil || !s.Domain.Active() ||
		s.Domain.Transient() ||
		vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	attached := AttachedNetworks(s.Pod)
	changes := domain.DiffInterfaces(&s.VMI.Spec, s.Domain.XML, func(network *v1.Network) bool {
		_, found := attached[podspec.PodInterface(network)]
		return found
	})
	if len(changes.Attach)+len(changes.Detach) == 0 {
		s.state.releases.requested = nil
		return nil
	}
	err := errors.Join(s.attachInterfaces(ctx, guest, changes.Attach), s.detachInterfaces(ctx, guest, changes.Detach))
	// The status reports the interfaces that the guest has now.
	return errors.Join(phase.FromConnection(err), s.ReadDomain(ctx, guest))
}

// attachInterfaces connects interfaces to the Pod's network and plugs them into the guest.
func (s *Guest) attachInterfaces(ctx context.Context, guest interfacePlugger, missing []v1.Interface) error {
	var due []v1.Interface
	var errs []error
	for i := range missing {
		if err := s.AwaitAttempt(plugAct(missing[i].Name)); err != nil {
			errs = append(errs, err)
			continue
		}
		due = append(due, missing[i])
	}
	if len(due) == 0 {
		return errors.Join(errs...)
	}
	var collected domain.Facts
	err := s.Attempt("connect interfaces", phase.ReasonSynchronizing, func() (err error) {
		collected, err = s.connectInterfaces(ctx, due)
		return err
	})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for i := range due {
		nic, err := domain.Interface(s.VMI, collected, due[i].Name)
		if err == nil {
			err = guest.AttachInterface(ctx, s.DomainName(), nic)
		}
		if err != nil {
			err = phase.FromConnection(fmt.Errorf("plug interface %q into the guest: %w", due[i].Name, err))
		}
		errs = append(errs, s.Attempted(plugAct(due[i].Name), ReasonHotPlugNIC, err))
	}
	return errors.Join(errs...)
}

// plugAct is the name of the act of plugging an interface into the guest.
func plugAct(iface string) string { return "plug interface " + iface }

// connectInterfaces connects interfaces to the Pod's network, and returns the facts by which they are built.
func (s *Guest) connectInterfaces(ctx context.Context, interfaces []v1.Interface) (domain.Facts, error) {
	only := s.VMI.DeepCopy()
	only.Spec.Domain.Devices.Interfaces = interfaces
	taps, err := s.devices.Networks.Ensure(ctx, only, s.Pod, false)
	if err != nil {
		return domain.Facts{}, fmt.Errorf("connect the guest's network: %w", err)
	}
	collected, err := facts.Collect(ctx, s.Config, s.devices.Facts, s.devices.Files(s.Pod.UID), &media.Result{}, taps)
	if err != nil {
		return domain.Facts{}, fmt.Errorf("inspect the launcher Pod: %w", err)
	}
	return collected, nil
}

// releases are when the guest was last requested to release an interface, by the interface's alias.
type releases struct{ requested map[string]time.Time }

// detachInterfaces requests that the guest releases interfaces, again until it has done so.
func (s *Guest) detachInterfaces(ctx context.Context, guest interfacePlugger, nics []libvirtxml.DomainInterface) error {
	var errs []error
	// The guest may have released an interface and got another one of the same name.
	maps.DeleteFunc(s.state.releases.requested, func(alias string, _ time.Time) bool {
		return !slices.ContainsFunc(nics, func(nic libvirtxml.DomainInterface) bool { return nic.Alias.Name == alias })
	})
	for i := range nics {
		alias := nics[i].Alias.Name
		last, again := s.state.releases.requested[alias]
		if wait := last.Add(unplugRetry).Sub(s.Now); again && wait > 0 {
			s.RequeueAfter(wait)
			continue
		}
		if s.state.releases.requested == nil {
			s.state.releases.requested = map[string]time.Time{}
		}
		s.state.releases.requested[alias] = s.Now
		s.RequeueAfter(unplugRetry)
		err := guest.DetachInterface(ctx, s.DomainName(), alias)
		switch {
		case err == nil:
		case again: // libvirt refuses a second request while the first one is pending.
			log.FromContext(ctx).V(2).Info("The guest was not requested again to release an interface", "alias", alias, "error",
				err.Error())
		default:
			errs = append(errs, &outcome.Retry{
				Reason: ReasonHotPlugNIC, After: unplugRetry, Err: fmt.Errorf("unplug interface %s from the guest: %w", alias, err),
			})
		}
	}
	return errors.Join(errs...)
}

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

// SetLinks connects and disconnects the interfaces of a running guest according to the spec, which follows the VM's
// template. It compares the spec with the running domain, so it also works after the agent was replaced. libvirt
// changes no devices during a migration, which sends the guest with its current links: afterwards the node that has the
// guest changes them.
func (s *Guest) SetLinks(ctx context.Context, guest interfaceUpdater) error {
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

// withOtherLink returns an interface of the running domain with the link that the spec requests, or nil if it has that
// link or the domain has no such interface. Everything else is what libvirt reported, so that only the link changes.
func withOtherLink(iface *v1.Interface, live *libvirtxml.Domain) *libvirtxml.DomainInterface {
	nic := domain.FindInterface(live, domain.InterfaceAlias(iface.Name))
	if nic == nil || iface.State == v1.InterfaceStateAbsent {
		return nil
	}
	wanted := linkUp
	if iface.State == v1.InterfaceStateLinkDown {
		wanted = linkDown
	}
	if LinkOf(nic) == wanted {
		return nil
	}
	updated := *nic
	updated.Link = &libvirtxml.DomainInterfaceLink{State: wanted}
	return &updated
}

// LinkOf returns the state of the link of a domain's interface.
func LinkOf(nic *libvirtxml.DomainInterface) string {
	if nic.Link != nil && nic.Link.State == linkDown {
		return linkDown
	}
	return linkUp
}

// networkStatusAnnotation is the annotation of a Pod in which Multus lists the attached networks. Source: the Network
// Plumbing Working Group's standard.
const networkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// Limits for what is read from the annotation: its value is copied to the VMI, and others than Multus may write it.
const (
	maxNetworkStatus = 64 << 10
	maxNetworkIPs    = 16
)

// AttachedNetworks returns the addresses of the Pod's interfaces by name, as Multus reports them. It ignores an
// annotation that it cannot read: the guest and the domain report interfaces too.
func AttachedNetworks(pod *corev1.Pod) map[string][]string {
	text := pod.Annotations[networkStatusAnnotation]
	if text == "" || len(text) > maxNetworkStatus {
		return nil
	}
	var list []struct {
		Interface string   `json:"interface"`
		IPs       []string `json:"ips"`
		Default   bool     `json:"default"`
	}
	if json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	attached := map[string][]string{}
	for _, one := range list {
		name := one.Interface
		if name == "" && one.Default {
			name = launcherpod.PrimaryInterface
		}
		var ips []string
		for _, ip := range one.IPs {
			if address, err := netip.ParseAddr(ip); err == nil && address.Zone() == "" && len(ips) < maxNetworkIPs {
				ips = append(ips, address.String())
			}
		}
		attached[name] = ips
	}
	return attached
}
