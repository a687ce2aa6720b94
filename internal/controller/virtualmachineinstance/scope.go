// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachineinstance leads a VMI to its launcher Pod, hands it over to the node's agent and, when the
// Pod has ended, ends the VMI. Each file is one phase; Run has their order.
package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/datavolume"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/nodeloss"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Scope is one reconciliation of one VMI: what the phases see and what they find out.
type Scope struct {
	// Client reads from the cache and writes to the API server. Live reads from the API server; it is asked only
	// before something that a cache that is behind must not decide.
	Client client.Client
	Live   client.Reader
	// Recorder takes events, after what they tell about has happened.
	Recorder events.EventRecorder
	// AgentRecorder takes those that name the agent of a node as their source.
	AgentRecorder func(node string) events.EventRecorder
	// Config is the cluster's part of the launcher Pod.
	Config podspec.Config
	// ReadNetworks says that the resources of networks are read from their NetworkAttachmentDefinitions.
	ReadNetworks bool
	// AutoCPULimit selects the namespaces in which launcher Pods get a limit of CPU. Nil selects none.
	AutoCPULimit labels.Selector
	// DataVolumes reads those of the importer.
	DataVolumes datavolume.Reader
	// KubeVirt is the name of the KubeVirt object that Config comes from, empty while there is none in Namespace.
	KubeVirt, Namespace string
	// StateStorageClass is the storage class of claims for the state of machines. Empty means the cluster's default.
	StateStorageClass string
	// Now is one time for the whole reconciliation.
	Now time.Time

	// VMI is what the API server has. Writes of metadata refresh it; its status stays as it was read until the
	// status is written.
	VMI *v1.VirtualMachineInstance
	// Pod is the launcher Pod that the guest is in, or nil.
	Pod *corev1.Pod
	// foreign says that a Pod of somebody else has the launcher Pod's name.
	foreign bool
	// Other is the Pod that the guest moves to, or has left, or nil.
	Other *corev1.Pod
	// migrating says that the VMI migrates or has done so, and actions are what is to be done about that.
	migrating bool
	actions   []migration.Action
	// abort says that the guest shall stay where it is.
	abort bool
	// Claims are the claims that exist by the name of the volume, read while the VMI prepares.
	Claims map[string]*corev1.PersistentVolumeClaim
	// followed are those of a live guest, and overheads what the importer says about file systems on claims.
	followed  map[string]*corev1.PersistentVolumeClaim
	overheads Overheads
	// imports are the DataVolumes behind the VMI's volumes, read with the claims.
	imports []*cdi.DataVolume
	// importing says that one of them is not filled yet, unconsumed that one is filled only after some Pod used it, noImporter
	// that the cluster has no DataVolumes.
	importing, unconsumed, noImporter bool
	// State is the claim with the machine's own state, or nil.
	State *corev1.PersistentVolumeClaim
	// VSOCK is the address on VSOCK of a VMI that is handed over and wants one.
	VSOCK *uint32
	// Problem is why the VMI cannot have a running Pod yet, or nil.
	Problem *Problem
	// HandOver says that the Pod runs and everything but the status has been handed over to the agent.
	HandOver bool
	// NodeSilent says that the agent of a live VMI's node has not been heard of for long.
	NodeSilent bool
	// verdict is what the silence means, if NodeSilent. outOfService says that the node is declared to be so.
	verdict      nodeloss.Verdict
	outOfService bool
	// End is how the VMI ended, or nil.
	End *End
	// RequeueAfter is when to reconcile again without being woken, or 0.
	RequeueAfter time.Duration
}

// Problem is something that a user may have to act on.
type Problem struct {
	// Reason is the reason of the condition Synchronized and of the event.
	Reason string
	// Message says what is wrong and where.
	Message string
	// Unschedulable says that the VMI cannot get a node because of it.
	Unschedulable bool
	// Scheduler says that the words are the scheduler's own. The condition PodScheduled tells them, and no other.
	Scheduler bool
}

// Run reconciles the VMI. The order matters where a number says why.
func Run(ctx context.Context, s *Scope) error {
	err := runPhases(ctx, s,
		// 1. The finalizer comes before anything that must be waited for at deletion.
		holdVMI,
		// 2. Nothing else can go on without it, so its absence is the first problem to tell.
		awaitKubeVirt,
		// 3. No Pod for a guest that would be another one than was asked for.
		refuseUnimplemented,
		// 4. The Pod needs to know of each claim whether it is a block device.
		readClaims,
		followClaims,
		// 5. The Pod asks for the devices of its networks.
		readNetworks,
		readMigrationNetwork,
		// A quota refuses a Pod without the limits that it counts.
		readLimits,
		// 6. What lasts is there before the Pod that uses it.
		keepState,
		// A guest that is in another Pod now is looked for there by all that follows.
		changeHands,
		// 7. Made while the VMI prepares, deleted with it.
		reconcilePod,
		// Whatever the stage: others read them at any time.
		describePod,
		// 8. Only a Pod that does not say itself why it waits is looked into.
		readPodEvents,
		// 9. No guest is handed over that cannot have what it was promised.
		requireGuaranteed,
		// 10. Label and readiness gate come before the status: the agent starts the guest when it sees Scheduled.
		handOver,
		// 11. Before the end: a Pod that went with its node gives that as the reason.
		lookAtNode,
		// What somebody has fenced runs no more.
		removeFenced,
		// 12. After the Pod was looked at for the last time.
		readEnd,
	)
	// 13. The status is written even if a phase failed: it says what failed.
	if statusErr := writeStatus(ctx, s); statusErr != nil {
		return errors.Join(err, statusErr)
	}
	if err != nil {
		return err
	}
	// 14. The next guest of the VM finds its state by what is done here.
	if err := settleState(ctx, s); err != nil {
		return err
	}
	// 15. The end is on record before the object may go.
	return releaseVMI(ctx, s)
}

func runPhases(ctx context.Context, s *Scope, phases ...func(context.Context, *Scope) error) error {
	for _, phase := range phases {
		if err := phase(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// Load reads the VMI's Pods.
func (s *Scope) Load(ctx context.Context) error {
	if err := s.loadPod(ctx); err != nil {
		return err
	}
	return s.loadOther(ctx)
}

// loadPod reads the launcher Pod. Where its absence would end the VMI, or let it go, the API server is asked: a cache that
// is behind must not kill a VM, nor let a second one start on the same disks.
func (s *Scope) loadPod(ctx context.Context) error {
	key := client.ObjectKey{Namespace: s.VMI.Namespace, Name: podspec.OwnPodName(s.VMI)}
	for _, reader := range []client.Reader{s.Client, s.Live} {
		pod := &corev1.Pod{}
		err := reader.Get(ctx, key, pod)
		s.foreign = err == nil && !s.owns(pod)
		switch {
		case err == nil && !s.foreign:
			s.Pod = pod
			return nil
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("get launcher Pod %s: %w", key, err)
		case !s.absenceDecides():
			return nil
		}
	}
	return nil
}

func (s *Scope) absenceDecides() bool {
	switch s.stage() {
	case vmistatus.Preparing:
		return s.deleting() || s.VMI.Status.Phase == v1.Scheduling
	case vmistatus.Live:
		return true
	default:
		return s.deleting()
	}
}

func (s *Scope) stage() vmistatus.Stage { return vmistatus.StageOf(s.VMI.Status.Phase) }

func (s *Scope) deleting() bool { return s.VMI.DeletionTimestamp != nil }

// preparing says that the VMI still is to get to a node.
func (s *Scope) preparing() bool { return s.stage() == vmistatus.Preparing && !s.deleting() }

// patchMetadata writes a change of labels, annotations or finalizers and refreshes the VMI. Without a change it
// writes nothing.
func (s *Scope) patchMetadata(ctx context.Context, change func(*v1.VirtualMachineInstance)) error {
	changed := s.VMI.DeepCopy()
	change(changed)
	if equalMetadata(&s.VMI.ObjectMeta, &changed.ObjectMeta) {
		return nil
	}
	lock := client.MergeFromWithOptions(s.VMI, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, changed, lock); err != nil {
		return fmt.Errorf("patch metadata of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VMI), err)
	}
	s.VMI = changed
	return nil
}

func equalMetadata(a, b *metav1.ObjectMeta) bool {
	return equalMaps(a.Labels, b.Labels) && equalMaps(a.Annotations, b.Annotations) &&
		slices.Equal(a.Finalizers, b.Finalizers)
}

func equalMaps(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, ok := b[key]; !ok || other != value {
			return false
		}
	}
	return true
}

// event tells the user what happened to the VMI, and with which Pod.
func (s *Scope) event(kind, reason, action, note string, args ...any) {
	s.record(s.Recorder, kind, reason, action, note, args...)
}

// agentEvent is event for what KubeVirt's agent of the guest's node says.
func (s *Scope) agentEvent(kind, reason, action, note string, args ...any) {
	s.record(s.AgentRecorder(s.VMI.Status.NodeName), kind, reason, action, note, args...)
}

func (s *Scope) record(recorder events.EventRecorder, kind, reason, action, note string, args ...any) {
	if s.Pod != nil {
		recorder.Eventf(s.VMI, s.Pod, kind, reason, action, note, args...)
		return
	}
	recorder.Eventf(s.VMI, nil, kind, reason, action, note, args...)
}
