// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/handover"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// arrive does the target's part of a migration, from the first sign of the guest until it runs here and the status says so.
func (r *Reconciler) arrive(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) error {
	m := vmi.Status.MigrationState
	if s.incoming == nil && m.TargetNodeDomainReadyTimestamp != nil {
		// It is here for good. Whether it is paused is between its user and libvirt. An earlier version left it to others to say that
		// this is the end. Another one may have ended between its claim and this.
		if !s.memory.arrived {
			r.arrived(ctx, s, vmi)
		}
		return r.tellArrival(ctx, s, migration.TargetRunning)
	}
	state, err := r.takeIn(ctx, s, vmi)
	if err != nil {
		return err
	}
	// First: nobody looks after a migration whose guest is said to be here for good.
	if now, _ := s.migrating(r.Node); now.Status.NodeName == r.Node && state != migration.TargetAbsent {
		r.arrived(ctx, s, now)
	}
	if err := r.tellArrival(ctx, s, state); err != nil {
		return err
	}
	switch {
	case s.incoming == nil:
		return r.look(ctx, s)
	case state != migration.TargetAbsent:
		return &Wait{Reason: "the guest to arrive"}
	default:
		return nil
	}
}

// takeIn carries out what is decided for the target, and returns the state of the guest after that.
func (r *Reconciler) takeIn(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) (migration.TargetDomain, error) {
	state, err := r.targetState(ctx, s)
	if err != nil {
		return state, err
	}
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	uid := vmi.Status.MigrationState.MigrationUID
	// What runs is claimed in the same go.
	for range 2 {
		for _, action := range migration.DecideTarget(migration.TargetView{Record: record, Domain: state, Released: r.Arrivals.Released(uid)}) {
			switch action {
			case migration.Run:
				if err := r.runTarget(ctx, s, vmi); err != nil {
					return state, err
				}
				state = migration.TargetRunning
			case migration.Claim:
				claimed := vmi.DeepCopy()
				bounded, cancel := context.WithTimeout(ctx, writeTimeout)
				err := vmistatus.Claim(bounded, r.Client, claimed, r.stamp())
				cancel()
				if err != nil {
					return state, fmt.Errorf("claim the guest: %w", err)
				}
				// From here on it is this node's: the cache brings it back as such.
				record.Owner, s.incoming = migration.Target, claimed
			case migration.Destroy:
				if err := s.machine.Destroy(ctx, s.domainName()); err != nil {
					return state, fromMachine(err)
				}
				r.Arrivals.Forget(s.pod.UID, uid)
				return migration.TargetAbsent, &Wait{Reason: "the launcher Pod to be deleted"}
			}
		}
		if state != migration.TargetRunning || record.Owner == migration.Target {
			break
		}
	}
	return state, nil
}

// runTarget lets the guest run, unless its user has paused it.
func (r *Reconciler) runTarget(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) error {
	if isPausedByUser(vmi) {
		return nil
	}
	if err := s.machine.ResumeTarget(ctx, s.domainName()); err != nil {
		return fromMachine(err)
	}
	return nil
}

func isPausedByUser(vmi *v1.VirtualMachineInstance) bool {
	paused := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstancePaused)
	return paused != nil && paused.Status == corev1.ConditionTrue && paused.Reason == v1.PausedByUserReason
}

func (r *Reconciler) targetState(ctx context.Context, s *scope) (migration.TargetDomain, error) {
	state, err := s.machine.Target(ctx, s.domainName())
	if err != nil {
		return state, fromMachine(err)
	}
	return state, nil
}

// tellArrival writes that the guest was seen here, and when it runs that and the migration's end in one.
func (r *Reconciler) tellArrival(ctx context.Context, s *scope, state migration.TargetDomain) error {
	if state == migration.TargetAbsent {
		return nil
	}
	now := r.stamp()
	return r.writeMigration(ctx, s, vmistatus.MigrationTarget, func(m *v1.VirtualMachineInstanceMigrationState) {
		m.TargetNodeDomainDetected = true
		if state == migration.TargetRunning {
			vmistatus.Complete(m, now)
		}
	})
}

// arrived lets go of what the migration needed.
func (r *Reconciler) arrived(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) {
	s.memory.arrived = true
	r.Arrivals.Forget(s.pod.UID, vmi.Status.MigrationState.MigrationUID)
	r.removeCertificates(ctx, s)
}

// removeCertificates takes the certificates of a migration from the Pod. They are of no use to anybody after it, so that nothing
// waits for that.
func (r *Reconciler) removeCertificates(ctx context.Context, s *scope) {
	if err := s.machine.RemoveMigrationTLS(ctx); err != nil {
		log.FromContext(ctx).V(3).Info("The certificate of a migration that has ended was not removed", "error", err.Error())
	}
}

// receive builds the domain that would be started here, and says that the guest may come.
func (r *Reconciler) receive(ctx context.Context, s *scope) error {
	if s.incoming == nil {
		return nil
	}
	state := s.incoming.Status.MigrationState
	if vmistatus.HasEnded(state) {
		return &Wait{Reason: "the launcher Pod to be deleted"}
	}
	address, err := streamAddress(s.pod, state)
	if err != nil {
		return err
	}
	published := state.TargetNodeAddress == r.Address
	if _, ready := r.Arrivals.Expected(state.MigrationUID); ready && published {
		return &Wait{Reason: "the guest to be sent"}
	}
	definition, err := r.build(ctx, s, s.incoming)
	if err != nil {
		return err
	}
	text, err := definition.Marshal()
	if err != nil {
		return fmt.Errorf("write the domain's XML: %w", err)
	}
	r.Arrivals.Expect(state.MigrationUID, handover.Arrival{
		Pod: hypervisor.PodRef{UID: s.pod.UID, VMI: s.key}, Address: address, Domain: text, Digests: podspec.ImageDigests(s.pod),
		Plain: handover.IsPlain(state.VMIMConfigurationOptions),
	})
	s.memory.migration = state.MigrationUID
	if err := r.publish(ctx, s); err != nil {
		return err
	}
	if !published {
		s.event(corev1.EventTypeNormal, v1.PreparingTarget.String(), fmt.Sprintf("Migration Target is listening at %s, on ports: %d,%d",
			r.Address, hypervisor.MigrationMemoryPort, hypervisor.MigrationDisksPort))
		s.event(corev1.EventTypeNormal, v1.PreparingTarget.String(), "VirtualMachineInstance Migration Target Prepared.")
	}
	return &Wait{Reason: "the guest to be sent"}
}

// streamAddress is where the guest's memory and disks are sent to.
func streamAddress(pod *corev1.Pod, state *v1.VirtualMachineInstanceMigrationState) (string, error) {
	if state.MigrationNetworkType != v1.Migration {
		if pod.Status.PodIP == "" {
			return "", &Wait{Reason: "the launcher Pod's address"}
		}
		return pod.Status.PodIP, nil
	}
	if ips := attachedNetworks(pod)[v1.MigrationInterfaceName]; len(ips) > 0 {
		return ips[0], nil
	}
	// Multus tells it before the Pod runs.
	return "", &Terminal{Reason: ReasonMissingPodInterface, Err: fmt.Errorf("launcher Pod %s has no address on interface %s: "+
		"check the NetworkAttachmentDefinition that configuration.migrations.network of the KubeVirt object names", pod.Name, v1.MigrationInterfaceName)}
}

// publish tells the source's agent whom to ask.
func (r *Reconciler) publish(ctx context.Context, s *scope) error {
	return r.writeMigration(ctx, s, vmistatus.MigrationTarget, func(m *v1.VirtualMachineInstanceMigrationState) {
		m.TargetNodeAddress = r.Address
		m.TargetDirectMigrationNodePorts = map[string]int{}
		for _, port := range []int{hypervisor.MigrationMemoryPort, hypervisor.MigrationDisksPort} {
			m.TargetDirectMigrationNodePorts[strconv.Itoa(port)] = port
		}
	})
}

// decline has the source's agent told why a guest cannot come, which ends the migration. It alone may say so in the status: it
// knows that the guest is still with it. What may mend is waited for.
func (r *Reconciler) decline(ctx context.Context, s *scope, outcome error) error {
	var terminal *Terminal
	if s.incoming == nil || !errors.As(outcome, &terminal) || vmistatus.HasEnded(s.incoming.Status.MigrationState) {
		return outcome
	}
	r.Arrivals.Expect(s.incoming.Status.MigrationState.MigrationUID, handover.Arrival{
		Pod: hypervisor.PodRef{UID: s.pod.UID, VMI: s.key}, Refusal: hypervisor.CleanLine(terminal.Error(), maxMessage),
	})
	if err := r.publish(ctx, s); err != nil {
		return err
	}
	return outcome
}

// errNotComplete is the answer to a release that comes before libvirt says that the guest is complete.
var errNotComplete = errors.New("the guest has not arrived as a whole")

// RunReleased lets a guest run that the source's agent has released, without waiting for what the reconciler is at. What follows
// from it is done by the reconciler. It returns for how long the guest has run, which libvirt lets run itself in a post-copy.
func (r *Reconciler) RunReleased(ctx context.Context, key types.NamespacedName, uid types.UID) (time.Duration, error) {
	defer r.Notify(key)
	s, err := r.read(ctx, key)
	if err != nil {
		return 0, err
	}
	if s == nil {
		return 0, fmt.Errorf("%w: its launcher Pod has ended", errNotComplete)
	}
	vmi, side := s.migrating(r.Node)
	if vmi == nil || side != migration.Target || vmi.Status.MigrationState.MigrationUID != uid {
		return 0, fmt.Errorf("%w: it is not expected", errNotComplete)
	}
	if err := r.connect(ctx, s); err != nil {
		return 0, err
	}
	state, err := r.targetState(ctx, s)
	if err != nil {
		return 0, err
	}
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	switch actions := migration.DecideTarget(migration.TargetView{Record: record, Domain: state, Released: r.Arrivals.Released(uid)}); {
	case state == migration.TargetRunning:
		return r.ran(s), nil
	case has(actions, migration.Run) && vmi.Status.MigrationState.TargetNodeDomainReadyTimestamp == nil:
		return 0, r.runTarget(ctx, s, vmi)
	default:
		return 0, errNotComplete
	}
}

// ran is for how long the guest has, as far as that is known.
func (r *Reconciler) ran(s *scope) time.Duration {
	since := s.machine.ResumedSince()
	if since.IsZero() {
		return 0
	}
	return max(r.Clock.Now().Sub(since), 0)
}
