// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/facts"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/media"
)

// Reasons of the condition Synchronized when it is False, and of the event SyncFailed.
const (
	// reasonSynchronizing is KubeVirt's reason for a failure that is tried again.
	reasonSynchronizing = "Synchronizing with the Domain failed."
	// ReasonInvalidVolume: a volume can never become a disk as it is described.
	ReasonInvalidVolume = "InvalidVolume"
	// ReasonInvalidCloudInit: the cloud-init data cannot be put on a medium.
	ReasonInvalidCloudInit = "InvalidCloudInit"
	// ReasonInvalidNetwork: an interface cannot be connected as it is described.
	ReasonInvalidNetwork = "InvalidNetwork"
	// ReasonInvalidDomain: the spec cannot be turned into a domain.
	ReasonInvalidDomain = "InvalidDomain"
	// ReasonUnreachable: the launcher's libvirtd does not answer.
	ReasonUnreachable = "LibvirtUnreachable"
)

// mayStart says that the domain is still to be started in this Pod. A domain that has ended stays so: the life of
// the Pod is the life of the guest, and the next one gets a Pod of its own.
func (s *scope) mayStart() bool {
	if s.domain != nil && s.domain.State != hypervisor.StateDefined {
		return false
	}
	// A guest that was running and whose domain is gone did not vanish by itself.
	return s.vmi == nil || s.vmi.Status.Phase != v1.Running
}

// network connects the Pod's network with the taps that the guest will get.
func (r *Reconciler) network(ctx context.Context, s *scope) error {
	vmi := s.spec()
	if vmi == nil || !s.mayStart() {
		return nil
	}
	if s.memory.interfaces == nil {
		interfaces, err := r.Networks.Ensure(ctx, s.machine.Process(), vmi, s.pod)
		if err != nil {
			return fmt.Errorf("connect the guest's network: %w", err)
		}
		s.memory.interfaces = interfaces
	}
	s.interfaces = s.memory.interfaces
	return nil
}

// media makes the guest's disks.
func (r *Reconciler) media(ctx context.Context, s *scope) error {
	vmi := s.spec()
	if vmi == nil || !s.mayStart() {
		return nil
	}
	if s.memory.disks == nil {
		disks, err := media.Prepare(ctx, s.machine, r.Secrets(s.pod.UID), media.Limits{
			ReserveBytes:        s.config.MinimumReservePVCBytes,
			TolerateLessPercent: s.config.PVCTolerateLessSpaceUpToPercent,
		}, vmi)
		if err != nil {
			return fromMedia(vmi, err)
		}
		s.memory.disks = disks
	}
	s.disks = s.memory.disks
	return nil
}

// fromMedia turns what went wrong with a volume into an outcome.
func fromMedia(vmi *v1.VirtualMachineInstance, err error) error {
	var invalid *media.InvalidError
	switch {
	case errors.As(err, &invalid):
		return &Terminal{Reason: invalidReason(vmi, invalid.Volume), Err: err}
	case errors.Is(err, media.ErrWait):
		return fmt.Errorf("%w: %w", &Wait{Reason: "a volume"}, err)
	default:
		return fromMachine(fmt.Errorf("prepare disks: %w", err))
	}
}

func invalidReason(vmi *v1.VirtualMachineInstance, volume string) string {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if v.Name == volume && (v.CloudInitNoCloud != nil || v.CloudInitConfigDrive != nil) {
			return ReasonInvalidCloudInit
		}
	}
	return ReasonInvalidVolume
}

// domain builds the domain and starts it.
func (r *Reconciler) domain(ctx context.Context, s *scope) error {
	if !s.mayStart() {
		return nil
	}
	if !s.handedOver {
		return &Wait{Reason: "the hand-over by virt-controller"}
	}
	files := r.Files(s.machine.Process())
	if err := files.ClaimDevices(ctx); err != nil {
		return err
	}
	collected := facts.Collect(ctx, s.config, r.Arch, files, s.disks, s.interfaces)
	definition, err := domain.Build(s.vmi, collected)
	if err != nil {
		return &Terminal{Reason: ReasonInvalidDomain, Err: fmt.Errorf("build the domain: %w", err)}
	}
	paused := s.vmi.Spec.StartStrategy != nil && *s.vmi.Spec.StartStrategy == v1.StartStrategyPaused
	if err := s.machine.Start(ctx, definition, paused); err != nil {
		// What was prepared may be what was wrong: the next attempt looks again.
		s.memory.interfaces, s.memory.disks = nil, nil
		return fromMachine(err)
	}
	s.event(corev1.EventTypeNormal, "Created", "VirtualMachineInstance defined.")
	// What runs now, with the addresses and names that libvirt chose.
	return r.look(ctx, s)
}

// sync takes in what a running guest tells.
func (r *Reconciler) sync(_ context.Context, s *scope) error {
	if s.domain.AgentConnected() {
		s.guest = s.machine.Guest(s.domainName())
	}
	return nil
}
