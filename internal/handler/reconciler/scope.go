// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/media"
	"github.com/vireo-project/vireo/internal/handler/pace"
)

// scope is one reconcile: what was read, and what the steps found out. Steps change it in memory; only the deferred
// step writes the VMI's status.
type scope struct {
	// key names the VMI.
	key types.NamespacedName
	// now is the time of this reconcile, the same for all steps.
	now time.Time
	// config is the cluster's configuration of this reconcile.
	config clusterconfig.Config
	// vmi is the VMI. Its status is changed in place. It is nil when there is none any more.
	vmi *v1.VirtualMachineInstance
	// before is the VMI as it was read.
	before *v1.VirtualMachineInstance
	// incoming is a VMI of another node on its way to this one, instead of vmi.
	incoming *v1.VirtualMachineInstance
	// pod is the launcher Pod on this node that has not finished.
	pod *corev1.Pod
	// memory is what earlier reconciles of this Pod left to save work.
	memory *podMemory

	// handedOver says that the controller has given the VMI to this node's agent, which from then on may start the
	// domain and owns the status.
	handedOver bool

	// machine is the connection to the Pod's hypervisor.
	machine Machine
	// looked says that the hypervisor was asked for the domain and answered.
	looked bool
	// domain is what it answered; nil means that there is none.
	domain *hypervisor.Domain
	// interfaces are the taps by the interface's name, once they are there.
	interfaces map[string]domain.InterfaceFact
	// disks are the prepared volumes.
	disks *media.Result
	// guest is what the guest agent told.
	guest *hypervisor.GuestInfo
	// credentials says whether the guest agent has brought in its credentials; nil if that is not known.
	credentials *hypervisor.CredentialsState
	// held is the guest's report that is used instead of what was seen, if the guest has caused enough writes for now.
	held *guestReport
	// omitted is how many interfaces that the guest reports are not in the status.
	omitted int
	// ioErrors are the messages about the disks that failed, if that has changed.
	ioErrors []string
	// settling says that the guest was resumed after an I/O error, and may be paused again in a moment.
	settling bool
	// again is when to look again though nothing may happen until then, if it is not 0.
	again time.Duration
	// events are those of the actions of this reconcile, in their order. They are sent whatever becomes of the status.
	events []pendingEvent
}

// pendingEvent is an event about the VMI.
type pendingEvent struct {
	kind, reason, message string
}

// event notes that an action was carried out. It must be one that no later reconcile carries out again.
func (s *scope) event(kind, reason, message string) {
	s.events = append(s.events, pendingEvent{kind: kind, reason: reason, message: message})
}

// podMemory saves work between reconciles of a Pod. Losing it costs repetition and nothing else.
type podMemory struct {
	// key names the VMI.
	key types.NamespacedName
	// pod is the Pod's name.
	pod string
	// vmi is the VMI as it was read before the hand-over, when the cache does not have it. Its spec never changes.
	vmi *v1.VirtualMachineInstance
	// interfaces and disks were prepared already.
	interfaces map[string]domain.InterfaceFact
	disks      *media.Result
	// forwards says that the guest has all its ports.
	forwards bool
	// sizes are those of the running guest's disks, by their target's name.
	sizes map[string]uint64
	// writes bounds those of the status, and guest those that the guest alone causes.
	writes *pace.Bucket
	guest  guestShare
	// grown are the attempts to make disks larger, by their volume.
	grown map[string]growth
	// recovery is how far the guest is from running on after an I/O error.
	recovery recovery
	// realtime says that the guest's vCPUs have their priority.
	realtime bool
	// migration is the one that the Pod waits for or came by.
	migration types.UID
	// arrived says that the guest came by a migration, and what that needed is gone.
	arrived bool
	// leaving is the one by which the guest was last sent away.
	leaving types.UID
	// lastShutdown is when the power button was pressed last.
	lastShutdown time.Time
}

func newPodMemory(key types.NamespacedName, pod string) *podMemory {
	return &podMemory{
		key: key, pod: pod, guest: newGuestShare(), writes: pace.NewBucket(writeBurst, pace.Doubling(writePause, maxWritePause)),
	}
}

// spec is the VMI that the Pod was made for, or nil if it is not known.
func (s *scope) spec() *v1.VirtualMachineInstance {
	switch {
	case s.vmi != nil:
		return s.vmi
	case s.incoming != nil:
		return s.incoming
	default:
		return s.memory.vmi
	}
}

// domainName is known from the key alone: a Pod can outlive its VMI.
func (s *scope) domainName() string { return domainName(s.key) }
