// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

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
	// ReasonMissingPodInterface: the Pod has no interface on a network to which the guest is to be connected.
	ReasonMissingPodInterface = "MissingPodInterface"
	// ReasonInvalidDomain: the spec cannot be turned into a domain.
	ReasonInvalidDomain = "InvalidDomain"
	// ReasonUnreachable: the launcher's libvirtd does not answer.
	ReasonUnreachable = "LibvirtUnreachable"
)

const (
	// secretRetry is the pause between two looks at a Secret that lacks something. The kubelet brings its copy up to
	// date about once a minute; source: kubernetes pkg/kubelet/apis/config/v1beta1/defaults.go, syncFrequency.
	secretRetry = 10 * time.Second
	// preparedRetry is the pause before what a domain lacks is prepared again.
	preparedRetry = time.Second
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
		awaited := s.awaitsGuest()
		interfaces, err := r.Networks.Ensure(ctx, s.machine.Process(), vmi, s.pod, awaited)
		if err != nil {
			return fmt.Errorf("connect the guest's network: %w", err)
		}
		s.memory.interfaces, s.memory.forwards = interfaces, !awaited
	}
	s.interfaces = s.memory.interfaces
	return nil
}

// awaitsGuest says that the guest comes to this Pod by a migration. A Pod that is prepared before the VMI's status names it as the target
// is known by its label, which nobody but virt-controller may set.
func (s *scope) awaitsGuest() bool {
	return s.vmi == nil && (s.incoming != nil || s.pod.Labels[v1.MigrationJobLabel] != "")
}

// forward gives the guest the ports by which a migration may have brought it here, once for each process of the agent.
func (r *Reconciler) forward(ctx context.Context, s *scope) error {
	if s.vmi == nil || s.incoming != nil || s.memory.forwards || !s.domain.Active() {
		return nil
	}
	if err := r.Networks.Forward(ctx, s.machine.Process(), s.vmi, s.pod); err != nil {
		return fmt.Errorf("forward the migration ports to the guest: %w", err)
	}
	s.memory.forwards = true
	return nil
}

// advertise makes the guest's IPv6 gateway known. A guest does without one rather than not run: what goes wrong is for
// the administrator of the node, and tried again by the next reconcile.
func (r *Reconciler) advertise(ctx context.Context, s *scope) error {
	vmi := s.spec()
	if vmi == nil || (s.interfaces == nil && !s.domain.Active()) {
		return nil
	}
	if err := r.Networks.Advertise(s.machine.Process(), vmi, s.pod); err != nil {
		log.FromContext(ctx).Error(err, "The guest gets no IPv6 gateway")
	}
	return nil
}

// media makes the guest's disks.
func (r *Reconciler) media(ctx context.Context, s *scope) error {
	vmi := s.spec()
	if vmi == nil || !s.mayStart() {
		return nil
	}
	if s.memory.disks == nil {
		disks, err := media.Prepare(ctx, s.machine, r.Content(s.pod.UID), media.Limits{
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
	case errors.As(err, &invalid) && invalid.Passing:
		return &Retry{Reason: invalidReason(vmi, invalid.Volume), After: secretRetry, Err: err}
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
	// Preparing may have taken long. A guest that boots takes its whole grace period to be stopped again.
	if err := r.stillWanted(ctx, s); err != nil {
		return err
	}
	definition, err := r.build(ctx, s, s.vmi)
	if err != nil {
		return err
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

// build makes the domain of a VMI from what was prepared in this Pod.
func (r *Reconciler) build(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) (*libvirtxml.Domain, error) {
	files := r.Files(s.machine.Process())
	if err := files.ClaimDevices(ctx); err != nil {
		return nil, err
	}
	collected := facts.Collect(ctx, s.config, r.Facts, files, s.disks, s.interfaces)
	facts.AddBlockSizes(ctx, vmi, files, collected.Disks)
	definition, err := domain.Build(vmi, collected)
	if err != nil {
		return nil, s.fromBuild(err)
	}
	return definition, r.describeDevices(ctx, s, vmi, definition)
}

// describeDevices puts the places of tagged devices onto the guest's config drive. libvirt chooses them when the domain is
// defined, and the same ones each time.
func (r *Reconciler) describeDevices(
	ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance, definition *libvirtxml.Domain,
) error {
	if !media.Tagged(vmi) {
		return nil
	}
	defined, err := s.machine.Define(ctx, definition)
	if err != nil {
		s.memory.interfaces, s.memory.disks = nil, nil
		return fromMachine(err)
	}
	if err := media.Describe(ctx, s.machine, r.Content(s.pod.UID), vmi, defined, s.disks); err != nil {
		return fromMedia(vmi, err)
	}
	return nil
}

// stillWanted ends the reconcile when the VMI or its Pod has been deleted since they were read. The event of the
// deletion enqueues the VMI once more.
func (r *Reconciler) stillWanted(ctx context.Context, s *scope) error {
	vmi, pod := &v1.VirtualMachineInstance{}, &corev1.Pod{}
	err := errors.Join(r.Client.Get(ctx, s.key, vmi), r.Client.Get(ctx, client.ObjectKeyFromObject(s.pod), pod))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("look whether the VMI is still wanted: %w", err)
	}
	if err != nil || vmi.UID != s.vmi.UID || vmi.DeletionTimestamp != nil || pod.UID != s.pod.UID || pod.DeletionTimestamp != nil {
		return &Wait{Reason: "the end of what was deleted"}
	}
	return nil
}

// fromBuild tells what the agent has not prepared, which it does anew, from what the VMI must not ask for.
func (s *scope) fromBuild(err error) error {
	var invalid *field.Error
	err = fmt.Errorf("build the domain: %w", err)
	if errors.Is(err, domain.ErrNotPrepared) && !errors.As(err, &invalid) {
		s.memory.interfaces, s.memory.disks = nil, nil
		return &Retry{Reason: reasonSynchronizing, After: preparedRetry, Err: err}
	}
	return &Terminal{Reason: ReasonInvalidDomain, Err: err}
}

// measure asks once how large the guest's disks are. A claim says that in round figures only, and a disk that moves to another volume
// needs to keep its size. What cannot be asked now is asked by the next reconcile.
func (r *Reconciler) measure(ctx context.Context, s *scope) {
	if s.memory.sizes != nil || !s.domain.Active() {
		return
	}
	sizes, err := s.machine.DiskSizes(ctx, s.domainName())
	if err != nil {
		log.FromContext(ctx).V(3).Info("The sizes of the guest's disks are not known yet", "error", err.Error())
		return
	}
	s.memory.sizes = sizes
}

// sync takes in what a running guest tells.
func (r *Reconciler) sync(ctx context.Context, s *scope) error {
	r.measure(ctx, s)
	if s.domain.AgentConnected() {
		s.guest = s.machine.Guest(s.domainName())
	}
	s.credentials = r.syncCredentials(s)
	s.machine.KeepThaw(s.domainName(), s.domain.Freeze())
	return nil
}
