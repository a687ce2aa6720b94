// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/outcome"
)

// scope is the state of one reconciliation: what was read, and what the phases found out. Phases change it in memory; only report
// writes the VMI's status.
type scope struct {
	// key is the VMI's key.
	key types.NamespacedName
	// now is the time of this reconciliation, the same for all phases.
	now time.Time
	// config is the cluster's configuration in this reconciliation.
	config clusterconfig.Config
	// vmi is the VMI, whose status is changed in place. It is nil if it does not exist or is not in the node's cache.
	vmi *v1.VirtualMachineInstance
	// before is the VMI as it was read.
	before *v1.VirtualMachineInstance
	// incoming is set instead of vmi if the VMI is on another node and migrates to this one.
	incoming *v1.VirtualMachineInstance
	// pod is the launcher Pod on this node that has not finished.
	pod *corev1.Pod
	// cache is what earlier reconciliations of this Pod stored to save work.
	cache *podCache

	// assigned reports whether virt-controller has assigned the VMI to this agent, which may then start the domain and owns the
	// status.
	assigned bool

	// connection is the connection to the Pod's libvirtd. Phases take the interfaces that they need instead.
	connection Connection
	// domainRead reports whether the domain was read from libvirtd.
	domainRead bool
	// domain is the domain, or nil if there is none.
	domain *hypervisor.Domain
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
	// requeue is when to reconcile again although no event may arrive until then; 0 means never.
	requeue time.Duration
	// events are those of the actions of this reconciliation, in order. They are recorded even if the status cannot be written.
	events []pendingEvent
}

// pendingEvent is an event about the VMI.
type pendingEvent struct {
	kind, reason, message string
}

// event adds an event about an action that no later reconciliation repeats.
func (s *scope) event(kind, reason, message string) {
	s.events = append(s.events, pendingEvent{kind: kind, reason: reason, message: message})
}

// requeueAfter makes the next reconciliation start after a delay, if no event triggers it earlier.
func (s *scope) requeueAfter(delay time.Duration) { s.requeue = outcome.Sooner(s.requeue, delay) }

// podCache saves work between reconciliations of a Pod. If it is lost, work is repeated, and nothing else happens. It is used only by the
// reconciliations of the Pod's VMI, of which there is one at a time, and by metrics, which read scraped.
//
// Each part belongs to one subject: only the file that declares the part's type uses its fields, and others call its methods.
// TestPartsOfThePodCache checks that.
type podCache struct {
	// key is the VMI's key.
	key types.NamespacedName
	// pod is the Pod's name.
	pod string
	// vmi is the VMI as it was read before it was assigned, when it is not in the cache. Nothing that is prepared from it
	// changes before the start.
	vmi *v1.VirtualMachineInstance

	// The start.
	prepared preparation
	realtime realtimePriority
	attempts attempts
	// Changes of a running guest.
	sizes       diskSizes
	growths     growths
	pluggings   pluggings
	earlyMounts earlyMounts
	releases    releases
	// Jobs.
	freeze snapshotfreeze.Keeper
	backup backupCache
	dump   memoryDump
	// Pauses.
	recovery  recovery
	apiErrors apiErrors
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

// knownVMI returns the VMI that the Pod was made for, or nil if it is not known.
func (s *scope) knownVMI() *v1.VirtualMachineInstance {
	switch {
	case s.vmi != nil:
		return s.vmi
	case s.incoming != nil:
		return s.incoming
	default:
		return s.cache.vmi
	}
}

// domainName follows from the key alone, because a Pod can outlive its VMI.
func (s *scope) domainName() string { return domainName(s.key) }
