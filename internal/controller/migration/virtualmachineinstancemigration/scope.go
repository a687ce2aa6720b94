// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachineinstancemigration reconciles migrations: it creates the target's Pod, assigns it to the agents,
// and reports how the migration ends. Each file has one concern; Run has the order.
//
// It does not decide who owns the guest: package protocol decides that from the VMI's status alone, and package
// virtualmachineinstance carries it out.
package virtualmachineinstancemigration

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of events. KubeVirt's names.
const (
	ReasonSuccessfulCreate    = "SuccessfulCreate"
	ReasonFailedCreate        = "FailedCreate"
	ReasonSuccessfulDelete    = "SuccessfulDelete"
	ReasonFailedDelete        = "FailedDelete"
	ReasonSuccessfulHandOver  = "SuccessfulHandOver"
	ReasonSuccessfulMigration = "SuccessfulMigration"
	ReasonFailedMigration     = "FailedMigration"
	ReasonSuccessfulAbort     = "SuccessfulAbortMigration"
	ReasonBackoff             = "MigrationBackoff"
	ReasonUnschedulable       = "migrationTargetPodUnschedulable"
	// ReasonWaitsForSnapshot is not KubeVirt's, which migrates a guest even during a snapshot.
	ReasonWaitsForSnapshot = "MigrationWaitsForSnapshot"
	// ReasonWaitsForBackup is not KubeVirt's, which has the condition migrationBlockedByBackup.
	ReasonWaitsForBackup = "MigrationWaitsForBackup"
	// ReasonWaitsForVolumes is not KubeVirt's.
	ReasonWaitsForVolumes = "MigrationWaitsForVolumes"
	// ReasonNotOnNetwork is not KubeVirt's, where the agents are attached to the network, and not the Pods.
	ReasonNotOnNetwork    = "NotOnMigrationNetwork"
	ReasonNoSuitableNodes = "NoSuitableNodesForHostModelMigration"
)

// Actions of events.
const (
	actionCreate = "CreatePod"
	actionDelete = "DeletePod"
	actionAssign = "Assign"
	actionAbort  = "Abort"
	actionEnd    = "End"
	actionWait   = "Wait"
)

// Scope is one reconciliation of one migration: the inputs and results of its phases.
type Scope struct {
	// Client reads from the cache and writes to the API server. APIReader reads from the API server, only before decisions
	// that a stale cache must not make.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Now is the time of the reconciliation.
	Now time.Time
	// Config is the cluster's configuration of launcher Pods, Migrations that of migrations.
	Config     podspec.Config
	Migrations *v1.MigrationConfiguration
	// AutoCPULimit selects the namespaces in which launcher Pods get a CPU limit. Nil selects none.
	AutoCPULimit labels.Selector
	// ReadNetworks reports whether the resources of networks are read from their NetworkAttachmentDefinitions.
	ReadNetworks bool
	// Queue is locked while a slot is assigned, so that two reconciliations of one process do not use the same one.
	Queue *Queue

	// Migration is the migration as it was read. Its status is not changed before it is written.
	Migration *v1.VirtualMachineInstanceMigration
	// VMI is the VMI that migrates, or nil.
	VMI *v1.VirtualMachineInstance
	// Own is the launcher Pod of the VMI's guest, Target that of this migration's target; either may be nil.
	Own, Target *corev1.Pod
	// Siblings are all migrations of the VMI, this one included.
	Siblings []*v1.VirtualMachineInstanceMigration

	// guestState is the claim with the guest's persistent state, if the target gets a claim of its own.
	guestState *corev1.PersistentVolumeClaim

	// Failure is why the migration has failed; empty if it has not.
	Failure string
	// Rejected reports whether a quota rejected the target's Pod in this reconciliation, and Message is the API server's
	// message.
	Rejected bool
	Message  string
	// UtilityVolumes reports whether the migration waits until the guest's utility volumes are detached.
	UtilityVolumes bool
	// RequeueAfter is when to reconcile again even if nothing changes, or 0.
	RequeueAfter time.Duration
}

// Run reconciles the migration. The order matters where a numbered comment gives the reason.
func Run(ctx context.Context, s *Scope) error {
	switch {
	case s.VMI == nil:
		return s.deleteWithoutVMI(ctx)
	case s.Migration.IsFinal():
		return errors.Join(s.removeFinalizer(ctx), s.deleteOld(ctx))
	}
	err := runPhases(ctx, s,
		// 1. The finalizer is added before anything is created that has to be cleaned up.
		addFinalizer,
		// 2. Nothing is started for a migration that has failed.
		checkFailure,
		// 3. The target's Pod is created before it is assigned.
		admit,
		awaitTarget,
		assign,
		// 4. After the assignment, only the agents can end the migration.
		requestAbort,
	)
	// 5. The status is written even if a phase failed, because it contains the reason.
	if statusErr := writeStatus(ctx, s); statusErr != nil {
		return errors.Join(err, statusErr)
	}
	if err != nil || !s.Migration.IsFinal() {
		return err
	}
	// 6. The final phase is written before the finalizer is removed.
	return errors.Join(s.removeFinalizer(ctx), s.deleteOld(ctx))
}

func runPhases(ctx context.Context, s *Scope, phases ...func(context.Context, *Scope) error) error {
	for _, phase := range phases {
		if err := phase(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// Load reads the objects of the migration.
func (s *Scope) Load(ctx context.Context) error {
	if err := s.loadVMI(ctx); err != nil || s.VMI == nil {
		return err
	}
	if s.Migration.IsFinal() {
		return s.loadSiblings(ctx)
	}
	var err error
	if s.Own, err = s.pod(ctx, s.Client, podspec.OwnPodName(s.VMI)); err != nil {
		return err
	}
	if s.Target, err = s.pod(ctx, s.Client, podspec.TargetPodName(s.VMI, s.Migration.UID)); err != nil {
		return err
	}
	return s.loadSiblings(ctx)
}

// loadVMI reads the VMI, from the API server if the cache does not have it: a migration without a VMI is deleted, and a
// stale cache must not decide that.
func (s *Scope) loadVMI(ctx context.Context) (err error) {
	key := client.ObjectKey{Namespace: s.Migration.Namespace, Name: s.Migration.Spec.VMIName}
	s.VMI, err = kit.Read(ctx, key, &v1.VirtualMachineInstance{}, s.Client, s.APIReader)
	return err
}

// pod reads a Pod of the VMI; nil means that there is none.
func (s *Scope) pod(ctx context.Context, reader client.Reader, name string) (*corev1.Pod, error) {
	return podOf(ctx, reader, s.VMI, name)
}

// podOf reads a Pod of a VMI; nil means that there is none. A Pod of this name with another owner is ignored.
func podOf(
	ctx context.Context, reader client.Reader, vmi *v1.VirtualMachineInstance, name string,
) (*corev1.Pod, error) {
	pod, err := podNamed(ctx, reader, vmi.Namespace, name)
	if pod != nil && !podspec.IsOf(pod, vmi) {
		pod = nil
	}
	return pod, err
}

func podNamed(ctx context.Context, reader client.Reader, namespace, name string) (*corev1.Pod, error) {
	if name == "" {
		return nil, nil
	}
	return kit.Read(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &corev1.Pod{}, reader)
}

func (s *Scope) loadSiblings(ctx context.Context) error {
	var err error
	s.Siblings, err = s.migrationsOf(ctx, s.VMI)
	return err
}

// migrationsOf returns the migrations of a VMI.
func (s *Scope) migrationsOf(
	ctx context.Context, vmi *v1.VirtualMachineInstance,
) ([]*v1.VirtualMachineInstanceMigration, error) {
	list := &v1.VirtualMachineInstanceMigrationList{}
	if err := s.Client.List(ctx, list, client.InNamespace(vmi.Namespace),
		client.MatchingFields{kit.VMIIndex: vmi.Name}); err != nil {
		return nil, fmt.Errorf("list the migrations of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(vmi), err)
	}
	out := make([]*v1.VirtualMachineInstanceMigration, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

func (s *Scope) deleting() bool { return s.Migration.DeletionTimestamp != nil }

// state returns status.migrationState of the VMI if it belongs to this migration, which is then assigned, or nil.
func (s *Scope) state() *v1.VirtualMachineInstanceMigrationState {
	return stateOf(s.VMI, s.Migration.UID)
}

func stateOf(vmi *v1.VirtualMachineInstance, uid types.UID) *v1.VirtualMachineInstanceMigrationState {
	if m := vmi.Status.MigrationState; m != nil && m.MigrationUID == uid {
		return m
	}
	return nil
}

func (s *Scope) ended() bool { return vmistatus.StageOf(s.VMI.Status.Phase) == vmistatus.Ended }

// cleanedUp reports whether the VMI's earlier migration is cleaned up. A new migration would replace the reference to
// its Pod.
func cleanedUp(
	ctx context.Context, reader client.Reader, vmi *v1.VirtualMachineInstance, own *corev1.Pod,
) (bool, error) {
	other, err := podOf(ctx, reader, vmi, podspec.OtherPodName(vmi))
	if err != nil || !virtualmachineinstance.MigrationCleanedUp(vmi, own, other) {
		return false, err
	}
	return virtualmachineinstance.StateClaimsMerged(ctx, reader, vmi)
}

func (s *Scope) alive(pod *corev1.Pod) bool {
	return virtualmachineinstance.PodFate(pod) == protocol.PodAlive
}

// event records an event about the migration.
func (s *Scope) event(kind, reason, action, note string, args ...any) {
	s.Recorder.Eventf(s.Migration, s.VMI, kind, reason, action, note, args...)
}
