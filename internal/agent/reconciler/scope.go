// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/ratelimit"
	"github.com/vireo-project/vireo/internal/agent/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/backup"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
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
func (s *scope) requeueAfter(delay time.Duration) { s.requeue = sooner(s.requeue, delay) }

// podCache saves work between reconciliations of a Pod. If it is lost, work is repeated, and nothing else happens.
type podCache struct {
	// key is the VMI's key.
	key types.NamespacedName
	// pod is the Pod's name.
	pod string
	// vmi is the VMI as it was read before it was assigned, when it is not in the cache. Nothing that is prepared from it
	// changes before the start.
	vmi *v1.VirtualMachineInstance
	// interfaces and disks are set once they are prepared.
	interfaces map[string]domain.InterfaceFact
	disks      *media.Result
	// tracks reports whether disks have overlays, as far as they can.
	tracks bool
	// forwards reports whether all ports are forwarded to the guest.
	forwards bool
	// sizes are those of the running guest's disks in bytes, by the name of their target.
	sizes map[string]uint64
	// writes limits all writes of the status except answers, and guestWrites those that the guest alone causes.
	writes      *ratelimit.Limiter
	answers     answers
	guestWrites guestWriteLimit
	// unplugged is when the guest was last requested to release an interface, by the interface's alias.
	unplugged map[string]time.Time
	// attempts are the acts that have failed.
	attempts attempts
	// grown are the attempts to grow disks, by their volume as it is mounted.
	grown map[mountID]growth
	// plugged is what is known about the hotplugged volumes, by their name.
	plugged map[string]*plugging
	// starting are the requests about attachment Pods that are being started, by the name of their volume. See mountEarly.
	starting map[string]*startingMount
	// recovery is the state of the recovery from an I/O error.
	recovery recovery
	// resumed is when resuming the guest was last tried because libvirt could not do it, or zero.
	resumed time.Time
	// realtime reports whether the guest's vCPUs have their priority.
	realtime bool
	// incoming is the UID of the migration of which the Pod is the target.
	incoming types.UID
	// migrated reports whether the guest was migrated to this Pod and everything that the migration needed is removed.
	migrated bool
	// outgoing is the UID of the last migration of which the Pod is the source.
	outgoing types.UID
	// freeze freezes the guest for snapshots.
	freeze snapshotfreeze.Keeper
	// backup is the record of a backup that was written last.
	backup backup.Record
	// imagesUnread is since when it could not be read whether the images of that backup exist, or zero.
	imagesUnread time.Time
	// backupOnce is the ID of a backup that this process has requested, as long as no request to begin it was lost.
	backupOnce string
	// dump is the name of the file of a memory dump that is to be begun.
	dump string
	// lastShutdown is when the guest was last requested to shut down.
	lastShutdown time.Time
	// monitored is the guest if it runs and has metrics. Scrapes read it.
	monitored atomic.Pointer[guestmetrics.Guest]
	// waiting is what the guest waits for, or nil. Scrapes read it.
	waiting atomic.Pointer[guestmetrics.Waiting]
}

func newPodCache(key types.NamespacedName, pod string) *podCache {
	return &podCache{
		key: key, pod: pod, guestWrites: newGuestWriteLimit(),
		writes: ratelimit.NewLimiter(writeBurst, ratelimit.ExponentialBackoff(writePause, maxWritePause)),
	}
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
