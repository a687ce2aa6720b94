// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Reasons of the condition Synchronized when it is False, and of the event SyncFailed.
const (
	// ReasonInvalidVolume: a volume of the spec cannot become a disk.
	ReasonInvalidVolume = "InvalidVolume"
	// ReasonInvalidCloudInit: the cloud-init data cannot be written to a disk.
	ReasonInvalidCloudInit = "InvalidCloudInit"
	// ReasonInvalidNetwork: an interface of the spec cannot be connected.
	ReasonInvalidNetwork = "InvalidNetwork"
	// ReasonMissingPodInterface: the Pod lacks an interface for one of the guest's networks.
	ReasonMissingPodInterface = "MissingPodInterface"
	// ReasonUnreachable: the launcher's libvirtd does not respond.
	ReasonUnreachable = "LibvirtUnreachable"
)

// secretRetry is the delay before an incomplete Secret is read again. The kubelet updates its copy about once a
// minute; source: kubernetes pkg/kubelet/apis/config/v1beta1/defaults.go, syncFrequency.
const secretRetry = 10 * time.Second

// domainBuilder builds a domain from what was prepared in the Pod.
type domainBuilder interface {
	media.Storage
	// Define defines a domain, replacing one of the same name, and returns it with the addresses that libvirt chose.
	Define(ctx context.Context, definition *libvirtxml.Domain) (*libvirtxml.Domain, error)
}

// domainStarter builds and starts a domain.
type domainStarter interface {
	phase.DomainReader
	domainBuilder
	stateChecker
	// Start defines and starts a domain. It does nothing if the domain runs.
	Start(ctx context.Context, definition *libvirtxml.Domain, paused bool) error
}

// mayStart reports whether the domain may still be started in this Pod. A Pod runs one guest once: the next guest gets
// a new Pod.
func (s *scope) mayStart() bool {
	if s.Domain != nil && s.Domain.State != hypervisor.StateDefined {
		return false
	}
	// A guest that was running has been started already, even if its domain does not exist any more.
	return s.VMI == nil || s.VMI.Status.Phase != v1.Running
}

// preparation is what a Pod's guest needs before it starts.
type preparation struct {
	// interfaces and disks are set once they are prepared.
	interfaces map[string]domain.InterfaceFact
	disks      *media.Result
	// tracks reports whether disks have overlays, as far as they can.
	tracks bool
	// forwards reports whether all ports are forwarded to the guest.
	forwards bool
}

// discard makes the next reconciliation prepare the network and the disks again.
func (p *preparation) discard() { p.interfaces, p.disks = nil, nil }

// prepareNetwork connects the guest's taps to the Pod's network.
func (r *Reconciler) prepareNetwork(ctx context.Context, s *scope) error {
	vmi := s.KnownVMI()
	if vmi == nil || !s.mayStart() {
		return nil
	}
	if s.cache.prepared.interfaces == nil {
		awaited := s.isMigrationTarget()
		interfaces, err := r.Networks.Ensure(ctx, vmi, s.Pod, awaited)
		if err != nil {
			return fmt.Errorf("connect the guest's network: %w", err)
		}
		s.cache.prepared.interfaces, s.cache.prepared.forwards = interfaces, !awaited
	}
	s.interfaces = s.cache.prepared.interfaces
	return nil
}

// isMigrationTarget reports whether the Pod is the target of a migration. Before the VMI's status names it, the Pod is
// known by its label, which only virt-controller may set.
func (s *scope) isMigrationTarget() bool {
	return s.VMI == nil && (s.Incoming != nil || s.Pod.Labels[v1.MigrationJobLabel] != "")
}

// forwardPorts forwards to the guest the ports that a migration to this Pod may have used, once for each process of the
// agent.
func (r *Reconciler) forwardPorts(ctx context.Context, s *scope) error {
	if s.VMI == nil || s.Incoming != nil || s.cache.prepared.forwards || !s.Domain.Active() {
		return nil
	}
	return s.Attempt("forward ports", phase.ReasonSynchronizing, func() error {
		if err := r.Networks.Forward(ctx, s.VMI, s.Pod); err != nil {
			return fmt.Errorf("forward the migration ports to the guest: %w", err)
		}
		s.cache.prepared.forwards = true
		return nil
	})
}

// advertise advertises the guest's IPv6 gateway. A failure is logged for the node's administrator and retried by the
// next reconciliation, because a guest can run without the gateway.
func (r *Reconciler) advertise(ctx context.Context, s *scope) error {
	vmi := s.KnownVMI()
	if vmi == nil || (s.interfaces == nil && !s.Domain.Active()) {
		return nil
	}
	if err := r.Networks.Advertise(vmi, s.Pod); err != nil {
		log.FromContext(ctx).Error(err, "Cannot advertise the guest's IPv6 gateway")
	}
	return nil
}

// prepareDisks prepares the guest's disks.
func (r *Reconciler) prepareDisks(ctx context.Context, s *scope, storage media.Storage) error {
	vmi := s.KnownVMI()
	if vmi == nil || !s.mayStart() {
		return nil
	}
	tracks := backup.WantsTracking(&vmi.Status)
	if s.cache.prepared.disks == nil || s.cache.prepared.tracks != tracks {
		disks, err := media.Prepare(ctx, storage, r.Content(s.Pod.UID), media.Limits{
			ReserveBytes:        s.Config.MinimumReservePVCBytes,
			TolerateLessPercent: s.Config.PVCTolerateLessSpaceUpToPercent,
		}, devices.WithoutHotplugged(vmi, s.Pod))
		if err != nil {
			return fromMedia(vmi, err)
		}
		if tracks {
			if err := media.Track(ctx, storage, r.Files(s.Pod.UID), devices.WithoutHotplugged(vmi, s.Pod), disks); err != nil {
				return phase.FromConnection(fmt.Errorf("prepare disks: %w", err))
			}
		}
		s.cache.prepared.disks, s.cache.prepared.tracks = disks, tracks
		s.addUntrackedEvent(disks.Untracked)
	}
	s.disks = s.cache.prepared.disks
	return nil
}

// The event of disks that cannot be tracked, and how long its message may be: the API server's limit.
const (
	reasonNotTracked = "ChangedBlocksNotTracked"
	maxNote          = 1024
)

// addUntrackedEvent records why changed blocks of disks are not tracked until the guest's next start or migration.
func (s *scope) addUntrackedEvent(untracked []string) {
	if len(untracked) == 0 {
		return
	}
	message := "Changed blocks are not tracked, so these volumes get full backups only: " + strings.Join(untracked, "; ")
	s.Event(corev1.EventTypeWarning, reasonNotTracked, hypervisor.CleanLine(message, maxNote))
}

// fromMedia converts an error about a volume to the error of the phase: a Retry, a Terminal or a Wait.
func fromMedia(vmi *v1.VirtualMachineInstance, err error) error {
	var invalid *media.InvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Retryable:
		return &outcome.Retry{Reason: invalidReason(vmi, invalid.Volume), After: secretRetry, Err: err}
	case errors.As(err, &invalid):
		return &outcome.Terminal{Reason: invalidReason(vmi, invalid.Volume), Err: err}
	case errors.Is(err, media.ErrWait):
		return fmt.Errorf("%w: %w", &outcome.Wait{Reason: "a volume"}, err)
	default:
		return phase.FromConnection(fmt.Errorf("prepare disks: %w", err))
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

// mountBeforeStart mounts the hotplugged volumes of a guest that is to be started, and adds them to the prepared ones.
func mountBeforeStart(ctx context.Context, s *scope) error {
	if !s.Assigned || !s.mayStart() || s.disks == nil {
		return nil
	}
	if err := s.devices.MountBeforeStart(ctx); err != nil {
		return err
	}
	s.disks = s.devices.WithPlugged(s.VMI, s.disks)
	return nil
}

// startDomain builds and starts the domain.
func (r *Reconciler) startDomain(ctx context.Context, s *scope, launcher domainStarter) error {
	if !s.mayStart() {
		return nil
	}
	if !s.Assigned {
		return &outcome.Wait{Reason: "virt-controller to assign the VMI"}
	}
	// Preparation may have taken long, and a guest that is booting takes its whole grace period to stop.
	if err := r.stillWanted(ctx, s); err != nil {
		return err
	}
	definition, err := r.build(ctx, s, launcher, s.VMI)
	if err != nil {
		return err
	}
	if err := s.checkState(ctx, launcher, definition); err != nil {
		return err
	}
	paused := s.VMI.Spec.StartStrategy != nil && *s.VMI.Spec.StartStrategy == v1.StartStrategyPaused
	if err := launcher.Start(ctx, definition, paused); err != nil {
		// The cause may be in what was prepared, so it is prepared again.
		s.cache.prepared.discard()
		return phase.FromConnection(err)
	}
	s.Event(corev1.EventTypeNormal, "Created", "VirtualMachineInstance defined.")
	// The running domain has the addresses and names that libvirt chose.
	return s.ReadDomain(ctx, launcher)
}

// build builds the domain of a VMI from what was prepared in this Pod.
func (r *Reconciler) build(
	ctx context.Context, s *scope, launcher domainBuilder, vmi *v1.VirtualMachineInstance,
) (*libvirtxml.Domain, error) {
	files := r.Files(s.Pod.UID)
	if err := files.OwnDevices(ctx); err != nil {
		return nil, err
	}
	collected, err := facts.Collect(ctx, s.Config, r.Facts, files, s.disks, s.interfaces)
	if err == nil {
		err = facts.AddBlockSizes(ctx, vmi, files, collected.Disks)
	}
	if err != nil {
		return nil, fmt.Errorf("inspect the launcher Pod: %w", err)
	}
	// A guest that is received may not have all volumes of its spec yet.
	collected.Unplugged = devices.Unplugged(vmi, s.Pod, collected.Disks)
	definition, err := domain.Build(vmi, collected)
	if err != nil {
		return nil, s.fromBuild(err)
	}
	return definition, r.describeDevices(ctx, s, launcher, vmi, definition)
}

// describeDevices writes the addresses of tagged devices to the guest's config drive. libvirt chooses the same
// addresses each time that the domain is defined.
func (r *Reconciler) describeDevices(
	ctx context.Context, s *scope, launcher domainBuilder, vmi *v1.VirtualMachineInstance, definition *libvirtxml.Domain,
) error {
	if !media.HasTaggedDevices(vmi) {
		return nil
	}
	defined, err := launcher.Define(ctx, definition)
	if err != nil {
		s.cache.prepared.discard()
		return phase.FromConnection(err)
	}
	if err := media.WriteDeviceMetadata(ctx, launcher, r.Content(s.Pod.UID), vmi, defined, s.disks); err != nil {
		return fromMedia(vmi, err)
	}
	return nil
}

// stillWanted ends the reconciliation if the VMI or its Pod was deleted since they were read. The event of the
// deletion enqueues the VMI again.
func (r *Reconciler) stillWanted(ctx context.Context, s *scope) error {
	vmi, pod := &v1.VirtualMachineInstance{}, &corev1.Pod{}
	err := errors.Join(r.Client.Get(ctx, s.Key, vmi), r.Client.Get(ctx, client.ObjectKeyFromObject(s.Pod), pod))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("check whether the VMI still exists: %w", err)
	}
	if err != nil || vmi.UID != s.VMI.UID || vmi.DeletionTimestamp != nil || pod.UID != s.Pod.UID ||
		pod.DeletionTimestamp != nil {
		return &outcome.Wait{Reason: "the deletion to be observed"}
	}
	return nil
}

// fromBuild makes an error about the VMI's spec Terminal. What is missing is prepared again.
func (s *scope) fromBuild(err error) error {
	var invalid *field.Error
	err = fmt.Errorf("build the domain: %w", err)
	if errors.Is(err, domain.ErrNotPrepared) && !errors.As(err, &invalid) {
		s.cache.prepared.discard()
		return err
	}
	return &outcome.Terminal{Reason: phase.ReasonInvalidDomain, Err: err}
}

// actStart is all that leads to the start of a guest, or to the state in which a Pod can receive one.
const actStart = "start"

// awaitStart returns the failure of the last start of a guest as long as the next one is not due.
func (s *scope) awaitStart() error {
	if !s.mayStart() {
		return nil
	}
	return s.AwaitAttempt(actStart)
}

// toStart returns a phase on the way to the start of a guest. A failure of it is one of the start.
func (r *Reconciler) toStart(s *scope, run func() error) func() error {
	return func() error {
		err := run()
		if err == nil {
			return nil // Other phases follow.
		}
		return s.Attempted(actStart, phase.ReasonSynchronizing, err)
	}
}

// ReasonStateDamaged is the reason of the condition Synchronized while the persistent state of TPM or EFI cannot be
// used.
const ReasonStateDamaged = "PersistentStateDamaged"

// stateRetry is the delay before damaged state is read again, which a user may have replaced or removed.
const stateRetry = time.Minute

// stateChecker reads the persistent state of a guest that is about to start.
type stateChecker interface {
	// CheckState returns hypervisor.ErrStateDamaged if the guest cannot use a file of its state.
	CheckState(ctx context.Context, files hypervisor.StateFiles) error
}

// checkState returns an error if the guest's persistent state is damaged. swtpm and QEMU would fail without naming the
// file. Nothing is repaired: a TPM's state may have keys of which a backup has a copy.
func (s *scope) checkState(ctx context.Context, launcher stateChecker, definition *libvirtxml.Domain) error {
	var files hypervisor.StateFiles
	if s.VMI.Spec.HasPersistentEFI() {
		files.NVRAM = launcherpod.NVRAMStateFile(s.VMI.Name)
	}
	if s.VMI.Spec.HasPersistentTPM() {
		files.TPM = launcherpod.TPMStateDir(definition.UUID)
	}
	err := launcher.CheckState(ctx, files)
	if errors.Is(err, hypervisor.ErrStateDamaged) {
		return &outcome.Retry{Reason: ReasonStateDamaged, After: stateRetry,
			Err: fmt.Errorf("PersistentVolumeClaim %s: %w: restore the claim from a backup, "+
				"or stop the VirtualMachine and delete the claim to start with an empty TPM and new EFI variables",
				podspec.StateClaim(s.Pod), err)}
	}
	if err != nil {
		return fmt.Errorf("check the persistent state: %w", phase.FromConnection(err))
	}
	return nil
}
