// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/handover"
	"github.com/vireo-project/vireo/internal/handler/pace"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// writeTimeout bounds a write that tells how a migration goes: an API server that is down must not hold up what the guest
	// needs.
	writeTimeout = 5 * time.Second
	// orphanInterval is the pause between two looks at a job that an earlier process began.
	orphanInterval = time.Second
)

// migrating is the VMI with the migration that the Pod takes part in, as it was read or written last, and the Pod's side. It is nil
// if there is none.
func (s *scope) migrating(node string) (*v1.VirtualMachineInstance, migration.Side) {
	if s.incoming != nil {
		return s.incoming, migration.Target
	}
	if s.before == nil {
		return nil, migration.Source
	}
	m := s.before.Status.MigrationState
	switch {
	case m == nil || m.TargetNode == "":
		return nil, migration.Source
	case m.SourceNode == node && s.before.Status.NodeName == node && (m.SourcePod == "" || m.SourcePod == s.pod.Name):
		return s.before, migration.Source
	case isTarget(s.before, node, s.pod.Name):
		return s.before, migration.Target
	default:
		return nil, migration.Source
	}
}

// isTarget says that a Pod is the one that a VMI's migration goes to.
func isTarget(vmi *v1.VirtualMachineInstance, node, pod string) bool {
	m := vmi.Status.MigrationState
	return m != nil && m.TargetNode == node && m.TargetPod == pod
}

// migrate does the next of what a migration asks of this node.
func (r *Reconciler) migrate(ctx context.Context, s *scope) error {
	vmi, side := s.migrating(r.Node)
	var err error
	switch {
	case vmi == nil:
		return r.depart(ctx, s)
	case side == migration.Source:
		err = r.leave(ctx, s, vmi)
	default:
		err = r.arrive(ctx, s, vmi)
	}
	if err != nil {
		// What was seen before it may be true no more.
		s.handedOver = false
	}
	return err
}

// writeMigration writes fields of the migration's state that belong to a side.
func (r *Reconciler) writeMigration(
	ctx context.Context, s *scope, w vmistatus.Writer, change func(*v1.VirtualMachineInstanceMigrationState),
) error {
	before, _ := s.migrating(r.Node)
	after := before.DeepCopy()
	change(after.Status.MigrationState)
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := vmistatus.Patch(ctx, r.Client, w, before, after); err != nil {
		return err
	}
	if s.incoming != nil {
		s.incoming = after
		return nil
	}
	s.before = after
	s.vmi.ResourceVersion, s.vmi.Status.MigrationState = after.ResourceVersion, after.Status.MigrationState.DeepCopy()
	return nil
}

// readNow reads the VMI of a Pod from the API server, not from a cache.
func (r *Reconciler) readNow(ctx context.Context, key types.NamespacedName, uid types.UID) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := r.Reader.Get(ctx, key, vmi); err != nil {
		return nil, err
	}
	if vmi.UID != uid {
		gone := apierrors.NewNotFound(v1.GroupVersion.WithResource("virtualmachineinstances").GroupResource(), key.Name)
		return nil, fmt.Errorf("%w: %w", errReplaced, gone)
	}
	return vmi, nil
}

// errReplaced means that a VMI is gone and another one has its name.
var errReplaced = errors.New("the VMI was replaced")

// depart ends a guest that has another owner. A VMI that is not among those of this node was not handed over yet, is gone, or is
// another node's by now. The guest of one that was replaced gets no time to shut down: its successor may run already.
func (r *Reconciler) depart(ctx context.Context, s *scope) error {
	if s.vmi != nil || !s.domain.Active() {
		return nil
	}
	vmi, err := r.readNow(ctx, s.key, ownerVMI(s.pod).UID)
	switch {
	case errors.Is(err, errReplaced):
		log.FromContext(ctx).Info("Destroying a guest whose VMI was replaced", "pod", s.pod.Name)
		if err := s.machine.Destroy(ctx, s.domainName()); err != nil {
			return fromMachine(err)
		}
		return &Wait{Reason: "the launcher Pod of a guest that was replaced to end"}
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look whose the guest is: %w", err)
	}
	record, ok := vmistatus.MigrationRecord(&vmi.Status)
	if m := vmi.Status.MigrationState; !ok || m.SourceNode != r.Node || m.SourcePod != s.pod.Name {
		return nil
	}
	state, err := s.machine.Source(ctx, s.domainName())
	if err != nil {
		return fromMachine(err)
	}
	if state.Domain == migration.SourceServing {
		// The target runs before libvirt has ended this one: it fetches pages from here.
		return &Requeue{After: orphanInterval}
	}
	_, view := r.copyView(vmi.Status.MigrationState.MigrationUID, record, state)
	if view.Copying || view.Orphaned {
		// libvirt is about to end it, and may not have noticed that the guest is gone.
		return &Requeue{After: orphanInterval}
	}
	for _, action := range migration.DecideSource(view) {
		if action == migration.Destroy {
			if err := s.machine.Destroy(ctx, s.domainName()); err != nil {
				return fromMachine(err)
			}
		}
	}
	return &Wait{Reason: "the launcher Pod of a guest that has moved to end"}
}

// left says that this process saw the guest being handed over. What the launcher does until its end is no change.
func (r *Reconciler) left(s *scope) bool {
	vmi, side := s.migrating(r.Node)
	if vmi == nil || side != migration.Source {
		return false
	}
	begun := r.copies.Find(vmi.Status.MigrationState.MigrationUID)
	return begun != nil && begun.State().HandedOver
}

// giveAway carries out what follows from a guest having been handed over, until the target is its owner or the process ends. It
// runs beside the reconciles: neither an API server that is down nor a launcher that has ended holds it up.
func (r *Reconciler) giveAway(ctx context.Context, vmi *v1.VirtualMachineInstance) {
	logger := log.FromContext(ctx)
	uid, pauses := vmi.Status.MigrationState.MigrationUID, pace.Doubling(firstPause, maxPause)
	// What was known when the copying began has changed since: at least the target has said that it sees the guest.
	cached := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, handover.Of(vmi).VMI, cached); err == nil && cached.UID == vmi.UID &&
		cached.Status.MigrationState != nil && cached.Status.MigrationState.MigrationUID == uid {
		vmi = cached
	}
	for {
		now, err := r.surrender(ctx, vmi)
		if err == nil {
			logger.Info("The guest runs on the migration's target", "node", vmi.Status.MigrationState.TargetNode)
			return
		}
		pause := pauses.Step()
		logger.Info("The guest was handed over, and that cannot be told yet", "error", err.Error(), "retryIn", pause.String())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		// What the API server says now, or what it said last. Another migration can have begun by then.
		if vmi = now; vmi.Status.MigrationState == nil || vmi.Status.MigrationState.MigrationUID != uid {
			return
		}
	}
}

const firstPause, maxPause = 50 * time.Millisecond, 5 * time.Second

// surrender releases the target's agent and records the target as the owner, both at once: either is enough. It fails as long as
// the target is not recorded, and returns the VMI as it is known then.
func (r *Reconciler) surrender(ctx context.Context, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error) {
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	actions := migration.DecideSource(migration.SourceView{Record: record, Domain: migration.SourceHandedOver})
	var release errgroup.Group
	var recorded error
	for _, action := range actions {
		switch action {
		case migration.Release:
			m := handover.Of(vmi)
			release.Go(func() error {
				runs, err := r.Peers.Release(ctx, m)
				if err == nil {
					r.copies.Ran(m.UID, runs)
				}
				return err
			})
		case migration.Yield:
			bounded, cancel := context.WithTimeout(ctx, writeTimeout)
			after := vmi.DeepCopy()
			if recorded = vmistatus.HandOver(bounded, r.Client, after); recorded == nil {
				vmi = after
			}
			cancel()
		}
	}
	err := release.Wait()
	if recorded == nil {
		// The target's agent sees in the status what could not be told it.
		return vmi, nil
	}
	now, readErr := r.readNow(ctx, handover.Of(vmi).VMI, vmi.UID)
	switch {
	case apierrors.IsNotFound(readErr):
		return vmi, nil
	case readErr == nil:
		vmi = now
		if record, ok := vmistatus.MigrationRecord(&vmi.Status); !ok || record.Owner == migration.Target || record.Failed || record.Final {
			return vmi, nil
		}
	}
	return vmi, errors.Join(err, recorded, readErr)
}
