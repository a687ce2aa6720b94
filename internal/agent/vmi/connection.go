// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/jobs"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/migration"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
)

// Connections connects to the libvirtds of launcher Pods.
type Connections interface {
	// Open returns the connection to a Pod. An error wraps hypervisor.ErrConnecting or hypervisor.ErrUnreachable;
	// the VMI is enqueued when that changes.
	Open(pod hypervisor.PodRef) (Connection, error)
	// Forget closes the connection to a Pod and does not make it again.
	Forget(pod types.UID)
}

// Connection is a connection to the libvirtd of one launcher Pod. It lists the interfaces of its consumers, which are declared
// beside them: each phase takes the one that it needs.
type Connection interface {
	phase.DomainReader
	guestStopper
	orphanStopper
	domainStarter
	media.Storage
	guestObserver
	ioErrorRecoverer
	apiErrorRecoverer
	diskGrower
	interfaceUpdater
	interfacePlugger
	guestResizer
	diskPlugger
	probePauser
	jobs.Connection
	migrationSource
	migrationTarget
}

// migrationSource is what the source of a migration does with the guest.
type migrationSource interface {
	migration.Source
	phase.DomainReader
	// ResumeSource resumes a guest that was suspended for a migration.
	ResumeSource(ctx context.Context, domain string) error
	// Destroy ends QEMU.
	Destroy(ctx context.Context, domain string) error
}

// migrationTarget is what the target of a migration does with the guest.
type migrationTarget interface {
	peer.Launcher
	// TargetState returns the state of the migration to this Pod.
	TargetState(ctx context.Context, domain string) (protocol.TargetDomain, error)
	// ResumeTarget resumes a guest that has been transferred to this Pod.
	ResumeTarget(ctx context.Context, domain string) error
	// ResumedSince returns when the guest was last resumed, or the zero time if that is not known.
	ResumedSince() time.Time
}

// Files reads the files and processes of a launcher Pod, and changes those that the Pod may not change itself.
type Files interface {
	facts.Files
	media.DeviceFiles
	// OwnDevices makes the user that QEMU runs as the owner of the Pod's devices.
	OwnDevices(ctx context.Context) error
	// SetRealtime gives vCPUs of the Pod's guest a realtime priority, if they run on CPUs that only their container may use.
	SetRealtime(ctx context.Context, vcpus []uint) error
	// AttachVolume gives the Pod the claim of an attachment Pod. block reports whether it is a block device.
	AttachVolume(ctx context.Context, volume string, attachment types.UID, block bool) error
	// AttachDevice waits until the container of an attachment Pod is started, and gives the Pod its block device.
	AttachDevice(ctx context.Context, volume string, attachment types.UID) error
	// AttachDirectory gives the Pod all files of the claim of an attachment Pod.
	AttachDirectory(ctx context.Context, volume string, attachment types.UID) error
	// DetachVolume removes either from the Pod, once what was written to a directory is on its disk. The attachment Pod
	// may be gone, and its UID unknown.
	DetachVolume(ctx context.Context, volume string, attachment types.UID, block bool) error
}

// Networks connects the guest's interfaces to the Pod's network.
type Networks interface {
	// Ensure creates what is missing and returns the tap of each interface by the interface's name. While the guest is expected
	// by a migration (awaited), the Pod's ports for the transfer are not forwarded to it until Forward is called.
	Ensure(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod, awaited bool) (map[string]domain.InterfaceFact, error)
	// Forward forwards all ports to a guest that has been migrated to this Pod. It does nothing if they are forwarded already.
	Forward(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error
	// Advertise starts advertising the guest's IPv6 gateway, unless it is advertised already. Call it after Ensure.
	Advertise(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error
	// Forget stops everything that runs for a Pod.
	Forget(pod types.UID)
}
