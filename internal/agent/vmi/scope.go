// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vmi runs the VMIs of one node and reports their state. Each reconcile reads everything again: the VMI, its
// launcher Pod, and libvirt's domain. What is kept in memory only saves work, so the agent can be restarted at any
// point.
package vmi

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/jobs"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
)

// scope is the state of one reconciliation. Phases change it in memory; only report writes the VMI's status.
type scope struct {
	phase.Scope
	// cache is what earlier reconciliations of this Pod stored to save work.
	cache *podCache

	// jobs has the guest's backups, dumps and freezes.
	jobs *jobs.Guest
	// devices changes the guest's devices.
	devices *devices.Guest
	// connection is the connection to the Pod's libvirtd. Phases take the interfaces that they need instead.
	connection Connection
	// interfaces are the taps by the interface's name, once they exist.
	interfaces map[string]domain.InterfaceFact
	// disks are the prepared volumes.
	disks *media.Result
	// guest is the guest agent's last report.
	guest *hypervisor.GuestInfo
	// credentials is the result of setting the access credentials in the guest; nil if that is not known.
	credentials *hypervisor.CredentialsState
	// delayedReport is the guest's previous report, which is used while writes of the current one are rate limited.
	delayedReport *guestReport
	// omitted is how many interfaces that the guest reports are not in the status.
	omitted int
	// ioErrors are the messages about the disks that failed, if that has changed.
	ioErrors []string
	// settling reports whether the guest was resumed after an I/O error and may be paused again in a moment.
	settling bool
	// undecided reports whether a migration has paused the guest, and neither node may let it run yet.
	undecided bool
}

// use sets what earlier reconciliations of the Pod stored, and what depends on it.
func (s *scope) use(cache *podCache, d *devices.Devices, j *jobs.Jobs) {
	s.cache, s.Acts = cache, &cache.acts
	s.jobs = j.Of(&s.Scope, &cache.jobs)
	s.devices = d.Of(&s.Scope, s.jobs, &cache.devices)
}

// podCache saves work between reconciliations of a Pod. If it is lost, work is repeated, and nothing else happens. It
// is used only by the reconciliations of the Pod's VMI, of which there is one at a time, and by metrics, which read
// scraped.
//
// Each part belongs to one subject: only the file that declares the part's type uses its fields, and others call its
// methods. TestPartsOfThePodCache checks that.
type podCache struct {
	// key is the VMI's key.
	key types.NamespacedName
	// pod is the Pod's name.
	pod string
	// vmi is the VMI as it was read before it was assigned, when it is not in the cache. Nothing that is prepared from
	// it changes before the start.
	vmi *v1.VirtualMachineInstance

	// The start.
	prepared preparation
	acts     phase.Acts
	// Changes of a running guest, and its jobs.
	devices devices.State
	jobs    jobs.State
	// Pauses.
	recovery  recovery
	apiErrors apiErrors
	// Facts about the Pod.
	selinuxContext string
	// Migrations.
	received received
	sent     sent
	// The end.
	shutdown shutdownRequests
	// What others see.
	reports reports
	scraped scraped
}

func newPodCache(key types.NamespacedName, pod string) *podCache {
	return &podCache{key: key, pod: pod, reports: newReports()}
}

// Connections connects to the libvirtds of launcher Pods.
type Connections interface {
	// Open returns the connection to a Pod. An error wraps hypervisor.ErrConnecting or hypervisor.ErrUnreachable;
	// the VMI is enqueued when that changes.
	Open(pod hypervisor.PodRef) (Connection, error)
	// Forget closes the connection to a Pod and does not make it again.
	Forget(pod types.UID)
}

// Connection is a connection to the libvirtd of one launcher Pod. It lists the interfaces of its consumers, which are
// declared beside them: each phase takes the one that it needs.
type Connection interface {
	phase.DomainReader
	guestStopper
	orphanStopper
	domainStarter
	media.Storage
	guestObserver
	ioErrorRecoverer
	apiErrorRecoverer
	devices.Connection
	probePauser
	jobs.Connection
	migrationSource
	migrationTarget
}

// migrationSource is what the source of a migration does with the guest.
type migrationSource interface {
	migrate.Source
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
	devices.Files
	// OwnDevices makes the user that QEMU runs as the owner of the Pod's devices.
	OwnDevices(ctx context.Context) error
	// SELinuxContext returns the SELinux context of the Pod, or "none" on a node without SELinux.
	SELinuxContext(ctx context.Context) (string, error)
}

// Networks connects the guest's interfaces to the Pod's network.
type Networks interface {
	// While the guest is expected by a migration, the Pod's ports for the transfer are not forwarded to it until
	// Forward is called.
	devices.Networks
	// Forward forwards all ports to a guest that has been migrated to this Pod. It does nothing if they are forwarded
	// already.
	Forward(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error
	// Advertise starts advertising the guest's IPv6 gateway, unless it is advertised already. Call it after Ensure.
	Advertise(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error
	// Forget stops everything that runs for a Pod.
	Forget(pod types.UID)
}
