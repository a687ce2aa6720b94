// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/outcome"
)

// Abandoned removes from VMIs what backups have left there that were removed by force, without their finalizer:
// migrations and other backups would wait for it until the guest ends. It reconciles VMIs, because nothing else has the
// UID of such a backup, which may have been removed while virt-controller was not running.
type Abandoned struct{ *Reconciler }

func (a Abandoned) setupWithManager(mgr ctrl.Manager) error {
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("abandonedbackup").
		For(&v1.VirtualMachineInstance{}, builder.WithPredicates(isInUse, backupChanged)).
		Watches(&v1alpha1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(a.guestsOf),
			builder.WithPredicates(isAbandoned)).
		WithOptions(kit.Fair(workers)), a)
}

// Reconcile takes the next step for each backup that has abandoned one VMI. Its writes, and those of the agent, trigger
// the later steps.
func (a Abandoned) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cached, err := kit.Read(ctx, request.NamespacedName, &v1.VirtualMachineInstance{}, a.Client)
	if err != nil || cached == nil {
		return ctrl.Result{}, err
	}
	if suspects, err := a.without(ctx, cached); err != nil || len(suspects) == 0 {
		return ctrl.Result{}, err
	}
	s := &scope{Reconciler: a.Reconciler, now: kit.Now(a.Clock)}
	s.vmi, err = kit.Read(ctx, request.NamespacedName, &v1.VirtualMachineInstance{}, a.APIReader)
	if err != nil || s.vmi == nil || s.vmi.IsFinal() {
		return ctrl.Result{}, err
	}
	return outcome.Result(ctx, s.cleanUpAbandoned(ctx))
}

// without returns the backups that have something in a VMI and that the cache does not have, or that do not remove it.
func (a Abandoned) without(ctx context.Context, vmi *v1.VirtualMachineInstance) ([]string, error) {
	var uids []string
	for _, uid := range plan.Holders(vmi) {
		backups := &v1alpha1.VirtualMachineBackupList{}
		if err := a.Client.List(ctx, backups, client.InNamespace(vmi.Namespace),
			client.MatchingFields{UIDIndex: uid}); err != nil {
			return nil, fmt.Errorf("list the VirtualMachineBackups of namespace %s with the UID %s: %w", vmi.Namespace, uid, err)
		}
		if len(backups.Items) == 0 {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// cleanUpAbandoned takes the next step for each backup that has something in the VMI and is gone. The backups are read
// from the API server after the VMI: the cache may lack a new one, while one that has written to the VMI existed before
// that.
func (s *scope) cleanUpAbandoned(ctx context.Context) error {
	holders := plan.Holders(s.vmi)
	backups, err := kit.Current[v1alpha1.VirtualMachineBackup](ctx, s.APIReader,
		v1alpha1.GroupVersion.WithKind("VirtualMachineBackup"),
		s.vmi.Namespace, nil, func(b metav1.Object) bool { return slices.Contains(holders, string(b.GetUID())) })
	if err != nil {
		return err
	}
	for _, uid := range holders {
		if slices.ContainsFunc(backups,
			func(b v1alpha1.VirtualMachineBackup) bool { return string(b.UID) == uid && isUnfinished(&b) }) {
			continue
		}
		before := s.vmi
		if err := s.apply(ctx, plan.CleanUp(s.vmi, uid, s.now)); err != nil {
			return client.IgnoreNotFound(err)
		}
		if s.vmi != before {
			ctrl.LoggerFrom(ctx).Info("Removing what a VirtualMachineBackup has left that was removed without its finalizer",
				"uid", uid)
		}
	}
	return nil
}

// guestsOf returns the VMIs in which a backup has something.
func (a Abandoned) guestsOf(ctx context.Context, backup client.Object) []ctrl.Request {
	return kit.Requests(ctx, a.Client, &v1.VirtualMachineInstanceList{}, client.InNamespace(backup.GetNamespace()),
		client.MatchingFields{GuestIndex: string(backup.GetUID())})
}

// isInUse passes VMIs in which a backup has something that others wait for.
var isInUse = kit.Objects(func(vmi *v1.VirtualMachineInstance) bool { return len(plan.Holders(vmi)) > 0 })

// isAbandoned passes backups that are gone, or that do not remove what they have in a VMI any more. At the start, all
// VMIs are new.
var isAbandoned = kit.ExceptCreations(
	kit.Updates(func(_, after *v1alpha1.VirtualMachineBackup) bool { return !isUnfinished(after) }))
