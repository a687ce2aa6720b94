// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachineinstance reconciles VMIs: it creates the launcher Pod of a VMI, assigns the running Pod to the
// node's agent and, when the Pod has finished, ends the VMI. runPhases has the phases of a reconciliation in their
// order.
package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// scope is one reconciliation of one VMI. Functions that compute the status take observed and result only.
type scope struct {
	inputs
	observed
	result
}

// inputs is what a reconciliation works with. No phase changes it.
type inputs struct {
	// client reads from the cache and writes to the API server. apiReader reads from the API server: it serves decisions
	// for which a stale cache is not good enough.
	client    client.Client
	apiReader client.Reader
	// recorder records events; call it after the write that the event is about.
	recorder events.EventRecorder
	// agentRecorder returns a recorder of events whose source is the agent of a node.
	agentRecorder func(node string) events.EventRecorder
	// importer reads DataVolumes.
	importer datavolume.Reader
	config   clusterconfig.Config
	// clock is the time after a write. Phases use now.
	clock clock.PassiveClock
	// endings is shared by all reconciliations.
	endings *endings
	// namespace is the install namespace.
	namespace string
	// recreations delays the creation of attachment Pods that are deleted again and again.
	recreations *flowcontrol.Backoff
}

// observed is what the reconciliation has read from the API, and what follows from that alone.
type observed struct {
	// now is the one time that the whole reconciliation uses.
	now time.Time
	// vmi is the last version that was read or written. Writes of its metadata refresh it; its status changes only in
	// transferOwnership and writeStatus.
	vmi *v1.VirtualMachineInstance
	// pod is the launcher Pod in which the guest runs or will run, or nil.
	pod *corev1.Pod
	// podNameTaken reports whether a Pod that does not belong to the VMI has the launcher Pod's name.
	podNameTaken bool
	// foreignLauncher is the name of the launcher Pod of a live VMI that KubeVirt has created and that has not finished,
	// or "".
	foreignLauncher string
	// otherPod is the target of a migration, or its source once the target owns the guest, or nil.
	otherPod *corev1.Pod
	// migrating reports whether the VMI has a migration, which may have finished.
	migrating bool
	// podConfig is what launcher Pods are rendered from besides the VMI. It comes from the cluster's configuration; phases
	// add what they read about claims, networks and quotas.
	podConfig podspec.Config
	// claims are the existing claims by the name of their volume: those for the launcher Pod while the VMI prepares, and
	// those whose size the status reports while the guest runs.
	claims map[string]*corev1.PersistentVolumeClaim
	// overheads are the importer's, read when the Pod is assigned.
	overheads Overheads
	// dataVolumes are those behind the VMI's volumes, read with the claims.
	dataVolumes []*cdi.DataVolume
	// importing reports whether a DataVolume is not filled yet, waitsForConsumer whether one is filled only once a Pod
	// uses it, noDataVolumes whether the cluster does not have the kind.
	importing, waitsForConsumer, noDataVolumes bool
	// attachments are the VMI's attachment Pods, by name, plugs its hotplugged volumes, sorted by name.
	attachments map[string]*corev1.Pod
	plugs       []*plug
	// plugsOf is the launcher Pod for which the plugs were read.
	plugsOf types.UID
	// stateClaim is the claim with the state of TPM and EFI, or nil.
	stateClaim *corev1.PersistentVolumeClaim
	// unusedStates are claims without an owner whose label names the VM, beside stateClaim. They are read before the Pod
	// is created.
	unusedStates []*metav1.PartialObjectMetadata
	// silence is set if the agent of a live VMI's node does not respond.
	silence *silence
	// migratesWorkloads reports whether virt-controller migrates guests that need another Pod.
	migratesWorkloads bool
}

// result is what the phases decided.
type result struct {
	// problem is why the VMI cannot have a running Pod yet, or nil. The first one found stays.
	problem *problem
	// migrationActions are what virt-controller has to do next according to the migration protocol.
	migrationActions []protocol.Action
	// abortMigration requests that the migration be aborted.
	abortMigration bool
	// assigned reports whether writeStatus assigns the Pod to its node's agent. The labels and the Pod are written
	// already.
	assigned bool
	// tracking is whether the changed blocks of a VMI that is assigned are tracked: Initializing, Disabled or undefined.
	tracking v1.ChangedBlockTrackingState
	// vsockCID is the VSOCK address of a VMI that is assigned and requests one.
	vsockCID *uint32
	// final is how the VMI ended, or nil.
	final *finalState
	// resizing is what is reported about a change of the guest's CPUs or memory. Nil leaves the conditions as they are.
	resizing *resizing
	// networkChange is what is reported about a change of the guest's interfaces. Nil leaves the condition as it is.
	networkChange *networkChange
	// requeueAfter is when to reconcile again without a trigger, or 0.
	requeueAfter time.Duration
}

// problem is something that a user may have to act on.
type problem struct {
	// reason is that of the condition Synchronized and of the event.
	reason string
	// message describes what is wrong and where.
	message string
	// unschedulable reports whether the VMI cannot get a node because of it.
	unschedulable bool
	// fromScheduler reports whether reason and message are the scheduler's. They are in the condition PodScheduled only.
	fromScheduler bool
}

// run reconciles the VMI. Comments give the reasons for the order of the steps, here and in runPhases.
func (s *scope) run(ctx context.Context) error {
	if s.foreignLauncher != "" {
		ctrl.LoggerFrom(ctx).Info("Leaving the guest as it is, because KubeVirt has started it",
			"pod", s.foreignLauncher)
		return nil
	}
	err := s.runPhases(ctx)
	// Even if a phase failed: the status reports the failure.
	if statusErr := s.writeStatus(ctx); statusErr != nil {
		return errors.Join(err, statusErr)
	}
	if err != nil {
		return err
	}
	if s.stage() == vmistatus.Ended {
		s.endings.of(s.vmi, kit.Now(s.clock))
	}
	// After the status: it names the claim to keep.
	if err := s.settleStateClaims(ctx); err != nil {
		return err
	}
	// After the status: a client that waits for the VMI can read how it ended before the object is removed.
	return s.removeFinalizer(ctx)
}

// runPhases runs the phases up to the first one that fails.
func (s *scope) runPhases(ctx context.Context) error {
	for _, phase := range []func(context.Context) error{
		// First: without the finalizer, the VMI could be removed while later phases create its Pod and claims.
		s.addFinalizer,
		// Only the first problem that is found is reported. Without a KubeVirt object nothing else works.
		s.requireKubeVirt,
		s.refuseUnimplemented,

		// Before reconcilePod: the Pod is rendered from what these phases read.
		s.readClaims,
		s.readLiveClaims,
		s.readHotplug,
		s.readVolumeAffinities,
		s.readNetworkResources,
		s.readMigrationNetwork,
		s.readRequiredLimits,
		s.ensureStateClaim,

		// Before reconcilePod: it may swap pod and otherPod.
		s.continueMigration,
		s.reconcilePod,
		s.syncPodMetadata,
		s.readPodEvents,

		// Before assignPod: no agent gets a guest that lacks its dedicated CPUs.
		s.requireGuaranteed,
		// Before writeStatus: the agent starts the guest when the phase is Scheduled.
		s.assignPod,

		// Before decideFinalState: the reason of an end can be that the node is lost.
		s.readAgent,
		s.deleteFencedPods,
		s.decideFinalState,

		// Last: a Pod that cannot be resized or created must prevent no other phase.
		s.changeGuest,
	} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

// load reads the VMI's Pods.
func (s *scope) load(ctx context.Context) error {
	if err := s.loadPod(ctx); err != nil {
		return err
	}
	return s.loadOtherPod(ctx)
}

// loadPod reads the launcher Pod. If the cache does not have the Pod and its absence would end the VMI or remove the
// finalizer, it reads the API server: with a stale cache, a running guest would be stopped, or a second one started on
// the same disks.
func (s *scope) loadPod(ctx context.Context) error {
	key := client.ObjectKey{Namespace: s.vmi.Namespace, Name: podspec.OwnPodName(s.vmi)}
	for _, reader := range []client.Reader{s.client, s.apiReader} {
		pod := &corev1.Pod{}
		err := reader.Get(ctx, key, pod)
		s.podNameTaken = err == nil && !s.owns(pod)
		switch {
		case err == nil && !s.podNameTaken:
			s.setPod(pod)
			return nil
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("get launcher Pod %s: %w", key, err)
		case !s.absenceDecides():
			return nil
		}
	}
	return s.loadForeignLauncher(ctx)
}

// setPod sets the launcher Pod, unless KubeVirt has created it and the guest of a live VMI runs in it. Such a VMI is
// left as it is. When it is deleted, or its guest has ended, the Pod is like any other.
func (s *scope) setPod(pod *corev1.Pod) {
	if s.stage() == vmistatus.Live && !s.deleting() && !podstate.Finished(pod) && podspec.StartedByKubeVirt(pod) {
		s.foreignLauncher = pod.Name
		return
	}
	s.pod = pod
}

// loadForeignLauncher reads the launcher Pod of a live VMI that KubeVirt has created, and whose name is not known. It
// reads the API server, since what it finds decides whether the guest has ended.
func (s *scope) loadForeignLauncher(ctx context.Context) error {
	if s.stage() != vmistatus.Live {
		return nil
	}
	err := kit.EachPage(ctx, s.apiReader, &corev1.PodList{}, func(page *corev1.PodList) {
		for i := range page.Items {
			pod := &page.Items[i]
			if podspec.IsOf(pod, s.vmi) && podspec.StartedByKubeVirt(pod) && (s.pod == nil || !podstate.Finished(pod)) {
				s.setPod(pod)
			}
		}
	}, client.InNamespace(s.vmi.Namespace),
		client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(s.vmi.UID)})
	if err != nil {
		return fmt.Errorf("list the launcher Pods of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.vmi), err)
	}
	return nil
}

// absenceDecides reports whether the VMI ends, or loses its finalizer, if it has no launcher Pod.
func (o *observed) absenceDecides() bool {
	switch o.stage() {
	case vmistatus.Preparing:
		return o.deleting() || o.vmi.Status.Phase == v1.Scheduling
	case vmistatus.Live:
		return true
	default:
		return o.deleting()
	}
}

func (o *observed) stage() vmistatus.Stage { return vmistatus.StageOf(o.vmi.Status.Phase) }

func (o *observed) deleting() bool { return o.vmi.DeletionTimestamp != nil }

// preparing reports whether the VMI is to be assigned to a node.
func (o *observed) preparing() bool { return o.stage() == vmistatus.Preparing && !o.deleting() }

// patchMetadata writes a change of labels, annotations or finalizers and refreshes s.vmi. Without a change it
// writes nothing.
func (s *scope) patchMetadata(ctx context.Context, change func(*v1.VirtualMachineInstance)) error {
	return kit.Patch(ctx, s.client, &s.vmi, change)
}

// event records an event about the VMI, related to its Pod.
func (s *scope) event(kind, reason, action, note string, args ...any) {
	s.record(s.recorder, kind, reason, action, note, args...)
}

// agentEvent records an event that in KubeVirt the agent of the guest's node records.
func (s *scope) agentEvent(kind, reason, action, note string, args ...any) {
	s.record(s.agentRecorder(s.vmi.Status.NodeName), kind, reason, action, note, args...)
}

func (s *scope) record(recorder events.EventRecorder, kind, reason, action, note string, args ...any) {
	if s.pod != nil {
		recorder.Eventf(s.vmi, s.pod, kind, reason, action, note, args...)
		return
	}
	recorder.Eventf(s.vmi, nil, kind, reason, action, note, args...)
}
