// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonHotPlugNIC is the reason of the condition Synchronized when libvirt refuses to plug or unplug an interface of the guest.
const ReasonHotPlugNIC = "HotPlugNetworkInterfaceError"

// unplugRetry is the delay before the guest is requested again to release an interface: it may have been booting.
const unplugRetry = 10 * time.Second

// interfacePlugger plugs interfaces into a running domain and unplugs them.
type interfacePlugger interface {
	phase.DomainReader
	// AttachInterface plugs an interface into a running guest.
	AttachInterface(ctx context.Context, name string, nic *libvirtxml.DomainInterface) error
	// DetachInterface requests that a running guest releases an interface, by its alias. It does not wait until the guest has done so.
	DetachInterface(ctx context.Context, name, alias string) error
}

// plugInterfaces plugs the interfaces of a running guest's spec, as far as its Pod has their networks, and unplugs those that are absent. It
// depends only on the spec, the domain and the Pod, so it also works after the agent was replaced, and after a migration to a Pod with other
// networks.
func (r *Reconciler) plugInterfaces(ctx context.Context, s *scope, guest interfacePlugger) error {
	if !s.Assigned || s.VMI.DeletionTimestamp != nil || s.Pod.DeletionTimestamp != nil || !s.Domain.Active() || s.Domain.Transient() ||
		vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	attached := attachedNetworks(s.Pod)
	changes := domain.DiffInterfaces(&s.VMI.Spec, s.Domain.XML, func(network *v1.Network) bool {
		_, found := attached[podspec.PodInterface(network)]
		return found
	})
	if len(changes.Attach)+len(changes.Detach) == 0 {
		s.cache.releases.requested = nil
		return nil
	}
	err := errors.Join(r.attachInterfaces(ctx, s, guest, changes.Attach), detachInterfaces(ctx, s, guest, changes.Detach))
	// The status reports the interfaces that the guest has now.
	return errors.Join(phase.FromConnection(err), s.ReadDomain(ctx, guest))
}

// attachInterfaces connects interfaces to the Pod's network and plugs them into the guest.
func (r *Reconciler) attachInterfaces(ctx context.Context, s *scope, guest interfacePlugger, missing []v1.Interface) error {
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
		collected, err = r.connectInterfaces(ctx, s, due)
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
func (r *Reconciler) connectInterfaces(ctx context.Context, s *scope, interfaces []v1.Interface) (domain.Facts, error) {
	only := s.VMI.DeepCopy()
	only.Spec.Domain.Devices.Interfaces = interfaces
	taps, err := r.Networks.Ensure(ctx, only, s.Pod, false)
	if err != nil {
		return domain.Facts{}, fmt.Errorf("connect the guest's network: %w", err)
	}
	collected, err := facts.Collect(ctx, s.Config, r.Facts, r.Files(s.Pod.UID), &media.Result{}, taps)
	if err != nil {
		return domain.Facts{}, fmt.Errorf("inspect the launcher Pod: %w", err)
	}
	return collected, nil
}

// releases are when the guest was last requested to release an interface, by the interface's alias.
type releases struct{ requested map[string]time.Time }

// detachInterfaces requests that the guest releases interfaces, again until it has done so.
func detachInterfaces(ctx context.Context, s *scope, guest interfacePlugger, nics []libvirtxml.DomainInterface) error {
	var errs []error
	// The guest may have released an interface and got another one of the same name.
	maps.DeleteFunc(s.cache.releases.requested, func(alias string, _ time.Time) bool {
		return !slices.ContainsFunc(nics, func(nic libvirtxml.DomainInterface) bool { return nic.Alias.Name == alias })
	})
	for i := range nics {
		alias := nics[i].Alias.Name
		last, again := s.cache.releases.requested[alias]
		if wait := last.Add(unplugRetry).Sub(s.Now); again && wait > 0 {
			s.RequeueAfter(wait)
			continue
		}
		if s.cache.releases.requested == nil {
			s.cache.releases.requested = map[string]time.Time{}
		}
		s.cache.releases.requested[alias] = s.Now
		s.RequeueAfter(unplugRetry)
		err := guest.DetachInterface(ctx, s.DomainName(), alias)
		switch {
		case err == nil:
		case again: // libvirt refuses a second request while the first one is pending.
			log.FromContext(ctx).V(2).Info("The guest was not requested again to release an interface", "alias", alias, "error", err.Error())
		default:
			errs = append(errs, &outcome.Retry{
				Reason: ReasonHotPlugNIC, After: unplugRetry, Err: fmt.Errorf("unplug interface %s from the guest: %w", alias, err),
			})
		}
	}
	return errors.Join(errs...)
}
