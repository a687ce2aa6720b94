// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// readSource reads what determines whether the VM can be locked.
func (s *scope) readSource(ctx context.Context) error {
	source := &s.observed.Source
	expanded, err := s.expanded(ctx)
	if err != nil {
		return err
	}
	if source.Volumes, err = volumesnapshot.Volumes(ctx, s.Client, s.VolumeSnapshots, expanded); err != nil {
		return err
	}
	source.Online, source.Unfilled = s.vmi != nil, map[string]string{}
	for i := range source.Volumes {
		claim := source.Volumes[i].Claim
		if claim == nil {
			continue
		}
		filled, problem, err := datavolume.Filled(ctx, s.DataVolumes, claim)
		if err != nil {
			return err
		}
		if !filled {
			source.Unfilled[claim.Name] = problem
		}
	}
	// A VM that is locked already is stored in any case.
	if source.Online || source.Locked(s.snapshot.Name) || source.Obstacle(s.snapshot.Name) != "" {
		return nil
	}
	source.Pods, err = s.countPods(ctx)
	return err
}

// expanded returns the VM with its instance type and preference, which may add a TPM. As in KubeVirt, a VM that cannot
// run because these do not exist, or conflict with it, is stored unchanged.
func (s *scope) expanded(ctx context.Context) (*v1.VirtualMachine, error) {
	vm := s.observed.Source.VM
	if vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return vm, nil
	}
	specs, err := reference.Finder{Objects: s.Client, Revisions: s.APIReader}.Find(ctx, vm)
	switch {
	case apierrors.IsNotFound(err):
		return vm, nil
	case err != nil:
		return nil, fmt.Errorf("instance type and preference of VirtualMachine %s: %w", client.ObjectKeyFromObject(vm), err)
	}
	expanded, _ := reference.ExpandVM(vm, specs)
	return expanded, nil
}

// lock locks the VM with two writes. It omits those that an earlier attempt has made.
func (s *scope) lock(ctx context.Context) error {
	vm := s.observed.Source.VM
	if vm.Status.SnapshotInProgress == nil {
		if err := s.setInProgress(ctx, ptr.To(s.snapshot.Name)); err != nil {
			return err
		}
	}
	return kit.AddFinalizer(ctx, s.Client, &s.observed.Source.VM, snapshot.SourceFinalizer)
}

// unlock unlocks the VM if it is locked for this snapshot. The status is written last, because it determines to which
// snapshot the finalizer belongs.
func (s *scope) unlock(ctx context.Context) error {
	return s.unlockFrom(ctx, s.snapshot.Name)
}

func (s *scope) unlockFrom(ctx context.Context, name string) error {
	vm := s.observed.Source.VM
	if vm == nil || vm.Status.SnapshotInProgress == nil || *vm.Status.SnapshotInProgress != name {
		return nil
	}
	if err := kit.RemoveFinalizer(ctx, s.Client, &s.observed.Source.VM, snapshot.SourceFinalizer); err != nil {
		return err
	}
	return client.IgnoreNotFound(s.setInProgress(ctx, nil))
}

// unlockAbandoned unlocks the VMs that are locked for a snapshot that is not taken of them.
func (r *Reconciler) unlockAbandoned(ctx context.Context, key client.ObjectKey) error {
	vms, err := kit.AbandonedVMs(ctx, r.Client, r.APIReader, LockIndex, key,
		func(vmSnapshot *v1beta1.VirtualMachineSnapshot) string { return vmSnapshot.Spec.Source.Name })
	for i := range vms {
		s := &scope{Reconciler: r}
		s.observed.Source.VM = &vms[i]
		if err := s.unlockFrom(ctx, key.Name); err != nil {
			return err
		}
	}
	return err
}

func (s *scope) setInProgress(ctx context.Context, name *string) error {
	return kit.WriteStatus(ctx, s.Client, &s.observed.Source.VM,
		func(vm *v1.VirtualMachine) { vm.Status.SnapshotInProgress = name })
}

// countPods counts the unfinished Pods that use a claim of the VM. It reads other Pods than launcher Pods, which are
// not in the cache, only if no launcher Pod uses a claim. Of these it counts one for each claim, and may miss some if
// it finds one.
func (s *scope) countPods(ctx context.Context) (int, error) {
	var claims []string
	for i := range s.observed.Source.Volumes {
		if name := s.observed.Source.Volumes[i].ClaimName; name != "" {
			claims = append(claims, name)
		}
	}
	pods := map[string]bool{}
	for _, claim := range claims {
		launchers, err := claimusers.Launchers(ctx, s.Client, s.snapshot.Namespace, claim)
		if err != nil {
			return 0, err
		}
		for i := range launchers {
			pods[launchers[i].Name] = true
		}
	}
	if len(pods) > 0 || len(claims) == 0 {
		return len(pods), nil
	}
	scanner := claimusers.Scanner{Cached: s.Client, API: s.APIReader, Selector: podstate.NotTerminal, Recent: &s.pods}
	used, err := scanner.Used(ctx, s.snapshot.Namespace, claims, s.now, claimusers.MaxProofAge)
	for _, pod := range used {
		pods[pod] = true
	}
	return len(pods), err
}
