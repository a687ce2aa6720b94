// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// received is the migration to this Pod.
type received struct {
	// migration is its UID.
	migration types.UID
	// finished reports whether the guest was migrated to this Pod and everything that the migration needed is removed.
	finished bool
}

// forget forgets the domain that was built for the migration.
func (m *received) forget(r *Reconciler, pod types.UID) { r.Targets.Forget(pod, m.migration) }

// migrateTarget carries out what package protocol decides for the target of a migration, and reports the guest's state
// there.
func (r *Reconciler) migrateTarget(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) error {
	m := vmi.Status.MigrationState
	if s.Incoming == nil && m.TargetNodeDomainReadyTimestamp != nil {
		// The migration has succeeded; from now on the guest may be paused for other reasons. An earlier process may
		// have stopped between taking ownership and this, and earlier versions did not report the migration's end.
		if !s.cache.received.finished {
			r.finishTarget(ctx, s, vmi)
		}
		return r.reportTarget(ctx, s, protocol.TargetRunning)
	}
	state, err := r.doTarget(ctx, s, vmi)
	if err != nil {
		return err
	}
	// First: a migration whose end is reported is not reconciled any more.
	if now, _ := s.migrating(r.Node); now.Status.NodeName == r.Node && state != protocol.TargetAbsent {
		r.finishTarget(ctx, s, now)
	}
	if err := r.reportTarget(ctx, s, state); err != nil {
		return err
	}
	switch {
	case s.Incoming == nil:
		return s.ReadDomain(ctx, s.connection)
	case state != protocol.TargetAbsent:
		return &outcome.Wait{Reason: "the guest to be transferred"}
	default:
		return nil
	}
}

// doTarget carries out the target's actions, and returns the state of the guest after them.
func (r *Reconciler) doTarget(
	ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance,
) (protocol.TargetDomain, error) {
	state, err := r.targetState(ctx, s)
	if err != nil {
		return state, err
	}
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	uid := vmi.Status.MigrationState.MigrationUID
	// The second iteration takes ownership of a guest that the first one resumed.
	for range 2 {
		actions := protocol.DecideTarget(
			protocol.TargetView{Record: record, Domain: state, Released: r.Targets.IsReleased(uid)})
		s.undecided = state == protocol.TargetComplete && len(actions) == 0
		for _, action := range actions {
			switch action {
			case protocol.Run:
				if err := r.runTarget(ctx, s, vmi); err != nil {
					return state, err
				}
				state = protocol.TargetRunning
			case protocol.TakeOwnership:
				owned := vmi.DeepCopy()
				bounded, cancel := context.WithTimeout(ctx, writeTimeout)
				err := vmistatus.TakeOwnership(bounded, r.Client, owned, r.stamp())
				cancel()
				if err != nil {
					return state, fmt.Errorf("take ownership of the guest: %w", err)
				}
				// This node owns the guest now. The VMI moves to the node's cache, which triggers another
				// reconciliation.
				record.Owner, s.Incoming = protocol.Target, owned
			case protocol.Destroy:
				if err := s.connection.Destroy(ctx, s.DomainName()); err != nil {
					return state, phase.FromConnection(err)
				}
				r.Targets.Forget(s.Pod.UID, uid)
				return protocol.TargetAbsent, &outcome.Wait{Reason: "the launcher Pod to be deleted"}
			}
		}
		if state != protocol.TargetRunning || record.Owner == protocol.Target {
			break
		}
	}
	return state, nil
}

// runTarget lets the guest run, unless its user has paused it, or it has stopped by itself: QEMU may refuse to resume
// it then.
func (r *Reconciler) runTarget(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) error {
	if isStopped(&vmi.Status) || pausedFor(&vmi.Status, v1.PausedByUserReason) != nil {
		return nil
	}
	if err := s.connection.ResumeTarget(ctx, s.DomainName()); err != nil {
		return phase.FromConnection(err)
	}
	return nil
}

func (r *Reconciler) targetState(ctx context.Context, s *scope) (protocol.TargetDomain, error) {
	state, err := s.connection.TargetState(ctx, s.DomainName())
	if err != nil {
		return state, phase.FromConnection(err)
	}
	return state, nil
}

// reportTarget writes that libvirt has the guest here, and, if it runs, the migration's end with the same write.
func (r *Reconciler) reportTarget(ctx context.Context, s *scope, state protocol.TargetDomain) error {
	if state == protocol.TargetAbsent {
		return nil
	}
	now := r.stamp()
	return r.writeMigration(ctx, s, vmistatus.MigrationTarget, func(m *v1.VirtualMachineInstanceMigrationState) {
		m.TargetNodeDomainDetected = true
		if state == protocol.TargetRunning {
			vmistatus.Complete(m, now)
		}
	})
}

// finishTarget removes what the migration needed.
func (r *Reconciler) finishTarget(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) {
	s.cache.received.finished = true
	r.Targets.Forget(s.Pod.UID, vmi.Status.MigrationState.MigrationUID)
	r.removeCertificates(ctx, s)
}

// removeCertificates removes the certificates of a migration from the Pod. They are useless after it, so a failure is
// only logged.
func (r *Reconciler) removeCertificates(ctx context.Context, s *scope) {
	if err := s.connection.RemoveMigrationTLS(ctx); err != nil {
		log.FromContext(ctx).V(3).Info("The certificate of a migration that has ended was not removed", "error", err.Error())
	}
}

// prepareTarget builds the domain that would be started here, and publishes that this agent is ready to receive the
// guest.
func (r *Reconciler) prepareTarget(ctx context.Context, s *scope) error {
	if s.Incoming == nil {
		return nil
	}
	state := s.Incoming.Status.MigrationState
	if vmistatus.HasEnded(state) {
		return &outcome.Wait{Reason: "the launcher Pod to be deleted"}
	}
	address, err := streamAddress(s.Pod, state)
	if err != nil {
		return err
	}
	published := state.TargetNodeAddress == r.Address
	if _, ready := r.Targets.Get(state.MigrationUID); ready && published {
		return &outcome.Wait{Reason: "the guest to be sent"}
	}
	if err := s.devices.MountOnTarget(ctx); err != nil {
		return err
	}
	s.disks = s.devices.WithPlugged(s.Incoming, s.disks)
	definition, err := r.build(ctx, s, s.connection, s.Incoming)
	if err != nil {
		return s.Attempted(actStart, phase.ReasonSynchronizing, err)
	}
	text, err := definition.Marshal()
	if err != nil {
		return fmt.Errorf("write the domain's XML: %w", err)
	}
	r.Targets.Put(state.MigrationUID, peer.Target{
		Pod: hypervisor.PodRef{UID: s.Pod.UID, VMI: s.Key}, Address: address, Domain: text,
		Digests: podspec.ImageDigests(s.Pod), Plain: migrate.IsPlain(state.VMIMConfigurationOptions),
	})
	s.cache.received.migration = state.MigrationUID
	if err := r.publishTarget(ctx, s); err != nil {
		return err
	}
	if !published {
		s.Event(corev1.EventTypeNormal, v1.PreparingTarget.String(),
			fmt.Sprintf("Migration Target is listening at %s, on ports: %d,%d",
				r.Address, hypervisor.MigrationMemoryPort, hypervisor.MigrationDisksPort))
		s.Event(corev1.EventTypeNormal, v1.PreparingTarget.String(), "VirtualMachineInstance Migration Target Prepared.")
	}
	return &outcome.Wait{Reason: "the guest to be sent"}
}

// streamAddress is the address that the guest's memory and disks are sent to.
func streamAddress(pod *corev1.Pod, state *v1.VirtualMachineInstanceMigrationState) (string, error) {
	if state.MigrationNetworkType != v1.Migration {
		if pod.Status.PodIP == "" {
			return "", &outcome.Wait{Reason: "the launcher Pod's address"}
		}
		return pod.Status.PodIP, nil
	}
	if ips := devices.AttachedNetworks(pod)[v1.MigrationInterfaceName]; len(ips) > 0 {
		return ips[0], nil
	}
	// Multus writes the address before the Pod runs.
	return "", &outcome.Terminal{Reason: ReasonMissingPodInterface,
		Err: fmt.Errorf("launcher Pod %s has no address on interface %s: "+
			"check the NetworkAttachmentDefinition that configuration.migrations.network of the KubeVirt object names", pod.Name,
			v1.MigrationInterfaceName)}
}

// publishTarget writes the agent's address for the source's agent.
func (r *Reconciler) publishTarget(ctx context.Context, s *scope) error {
	return r.writeMigration(ctx, s, vmistatus.MigrationTarget, func(m *v1.VirtualMachineInstanceMigrationState) {
		m.TargetNodeAddress = r.Address
		m.TargetDirectMigrationNodePorts = map[string]int{}
		for _, port := range []int{hypervisor.MigrationMemoryPort, hypervisor.MigrationDisksPort} {
			m.TargetDirectMigrationNodePorts[strconv.Itoa(port)] = port
		}
	})
}

// refuseMigrationIfTerminal has the source's agent fail the migration if the target can never be prepared. Only the
// source's agent may record a failure: only it is certain that the guest is still at the source. An error that is not
// terminal is retried.
func (r *Reconciler) refuseMigrationIfTerminal(ctx context.Context, s *scope, phaseErr error) error {
	var terminal *outcome.Terminal
	if s.Incoming == nil || !errors.As(phaseErr, &terminal) || vmistatus.HasEnded(s.Incoming.Status.MigrationState) {
		return phaseErr
	}
	r.Targets.Put(s.Incoming.Status.MigrationState.MigrationUID, peer.Target{
		Pod: hypervisor.PodRef{UID: s.Pod.UID, VMI: s.Key}, Refusal: hypervisor.CleanLine(terminal.Error(), phase.MaxMessage),
	})
	return errors.Join(phaseErr, r.publishTarget(ctx, s))
}

// errNotComplete is the error of a release before the target's guest is complete.
var errNotComplete = errors.New("the guest is not transferred completely")

// RunReleased lets a guest that the source's agent has released run at once, and triggers a reconciliation for the
// rest. It returns for how long the guest has run: in a post-copy, libvirt resumes it earlier. It is called while the
// VMI may be reconciled, so it uses no podCache.
func (r *Reconciler) RunReleased(ctx context.Context, key types.NamespacedName, uid types.UID) (time.Duration, error) {
	defer r.Enqueue(key)
	pods, err := r.listPods(ctx, key)
	if err != nil {
		return 0, err
	}
	s, err := r.readGuest(ctx, key, pods)
	if err != nil {
		return 0, err
	}
	if s == nil {
		return 0, fmt.Errorf("%w: its launcher Pod has ended", errNotComplete)
	}
	vmi, side := s.migrating(r.Node)
	if vmi == nil || side != protocol.Target || vmi.Status.MigrationState.MigrationUID != uid {
		return 0, fmt.Errorf("%w: it is not expected", errNotComplete)
	}
	if err := r.connect(s); err != nil {
		return 0, err
	}
	state, err := r.targetState(ctx, s)
	if err != nil {
		return 0, err
	}
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	switch actions := protocol.DecideTarget(
		protocol.TargetView{Record: record, Domain: state, Released: r.Targets.IsReleased(uid)}); {
	case state == protocol.TargetRunning:
		return r.runningFor(s), nil
	case slices.Contains(actions, protocol.Run) && vmi.Status.MigrationState.TargetNodeDomainReadyTimestamp == nil:
		return 0, r.runTarget(ctx, s, vmi)
	default:
		return 0, errNotComplete
	}
}

// runningFor returns for how long the guest has run; 0 if that is unknown.
func (r *Reconciler) runningFor(s *scope) time.Duration {
	since := s.connection.ResumedSince()
	if since.IsZero() {
		return 0
	}
	return max(r.Clock.Now().Sub(since), 0)
}
