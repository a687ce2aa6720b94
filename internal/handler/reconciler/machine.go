// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/facts"
	"github.com/vireo-project/vireo/internal/handler/handover"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/media"
	"github.com/vireo-project/vireo/internal/migration"
)

// Machines gives the connections to the hypervisors of launcher Pods.
type Machines interface {
	// Open returns the connection to a Pod. An error wraps hypervisor.ErrConnecting or hypervisor.ErrUnreachable,
	// and the VMI is enqueued when that changes.
	Open(pod hypervisor.PodRef) (Machine, error)
	// Forget ends the connection to a Pod for good.
	Forget(pod types.UID)
}

// Machine is one launcher Pod's hypervisor.
type Machine interface {
	Domains
	Power
	Guests
	Freezer
	Mover
	media.Storage
}

// Domains looks at a domain and starts it.
type Domains interface {
	// Domain describes the domain of a name, or fails with hypervisor.ErrNoDomain.
	Domain(ctx context.Context, name string) (*hypervisor.Domain, error)
	// Define defines a domain and returns it with the addresses that libvirt chose. One that is defined is replaced.
	Define(ctx context.Context, definition *libvirtxml.Domain) (*libvirtxml.Domain, error)
	// Start defines and starts a domain. One that runs stays as it is.
	Start(ctx context.Context, definition *libvirtxml.Domain, paused bool) error
	// DiskSizes is how large the disks of a running domain are, in bytes, by the name of their target.
	DiskSizes(ctx context.Context, name string) (map[string]uint64, error)
	// GrowDisk makes a disk of a running domain larger, by the name of its target: 0 bytes make it as large as the device that it is.
	GrowDisk(ctx context.Context, name, target string, bytes uint64) error
	// DiskErrors is which disks of a running domain have failed, by the name of their target.
	DiskErrors(ctx context.Context, name string) (map[string]hypervisor.DiskError, error)
}

// Power ends a domain.
type Power interface {
	// Shutdown asks the guest to power off and returns at once.
	Shutdown(ctx context.Context, name string) error
	// ResumeAfterIOError lets a guest go on that an I/O error paused, and no other.
	ResumeAfterIOError(ctx context.Context, name string) error
	// Destroy takes the power away.
	Destroy(ctx context.Context, name string) error
}

// Guests looks inside.
type Guests interface {
	// Guest is what the guest agent told last, or nil. The VMI is enqueued when it tells something else.
	Guest(domain string) *hypervisor.GuestInfo
	// Credentials says whether the guest has the credentials that read returns, or nil if that was not tried. The VMI is
	// enqueued when the answer changes.
	Credentials(domain string, read func() (hypervisor.Credentials, error)) *hypervisor.CredentialsState
	// PauseProbes notes in the running domain whether probes by guestAgentPing are paused.
	PauseProbes(ctx context.Context, domain string, paused bool) error
	// Process is the hypervisor's process as the way into the Pod's namespaces.
	Process() *hypervisor.Process
}

// Freezer ends freezes of guests' file systems.
type Freezer interface {
	// KeepThaw makes the guest be thawed when its freeze says, in its own time. Nil ends that.
	KeepThaw(domain string, freeze *hypervisor.Freeze)
}

// Mover moves domains between launchers.
type Mover interface {
	handover.Machine
	handover.Launcher
	// ResumeSource lets a guest go on that was suspended to leave.
	ResumeSource(ctx context.Context, domain string) error
	// Target says how far a guest is from having arrived.
	Target(ctx context.Context, domain string) (migration.TargetDomain, error)
	// ResumeTarget lets a guest run that has arrived.
	ResumeTarget(ctx context.Context, domain string) error
	// ResumedSince is when the guest was last seen to run on, or zero.
	ResumedSince() time.Time
}

// Files looks at the files and processes of a launcher Pod, and gives it what it may not take itself.
type Files interface {
	facts.Files
	// ClaimDevices gives the Pod's devices to the user that QEMU runs as.
	ClaimDevices(ctx context.Context) error
	// SetRealtime gives vCPUs of the Pod's guest a realtime priority, if they run on CPUs that its container has for itself.
	SetRealtime(ctx context.Context, vcpus, exclusive []uint) error
}

// Networks connects the guest's interfaces to the Pod's network.
type Networks interface {
	// Ensure makes what is missing and returns the tap of each interface by the interface's name. A guest that is awaited comes from
	// another node, by ports of the Pod that are not its own before Forward.
	Ensure(ctx context.Context, process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod, awaited bool) (
		map[string]domain.InterfaceFact, error)
	// Forward gives a guest that has arrived all its ports. It changes nothing if it has them.
	Forward(ctx context.Context, process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error
	// Advertise makes the guest's IPv6 gateway known from now on, unless that goes on already. Call it after Ensure;
	// the process is not needed any more when it returns.
	Advertise(process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error
	// Forget ends what goes on for a Pod.
	Forget(pod types.UID)
}
