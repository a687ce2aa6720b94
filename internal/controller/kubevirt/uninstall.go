// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/node"
)

// Remove removes the installation: guests first, because they need the agents to shut down, then the rest.
func Remove(ctx context.Context, s *Scope) Uninstall {
	left, err := findWorkloads(ctx, s.Client)
	if err != nil {
		return Uninstall{Err: err}
	}
	if len(left.creators)+len(left.vmis) > 0 {
		if s.KubeVirt.Spec.UninstallStrategy == v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist {
			return Uninstall{Blocked: left.String() + ": delete them, or set spec.uninstallStrategy to RemoveWorkloads"}
		}
		return Uninstall{Waiting: left.String(), Err: left.remove(ctx, s.Client)}
	}

	if s.Monitoring != nil {
		if err := s.Monitoring.Remove(ctx); err != nil {
			return Uninstall{Err: err}
		}
	}
	remaining, err := s.installer().Remove(ctx)
	if err != nil {
		return Uninstall{Err: err}
	}
	common, err := s.commonInstancetypes().Remove(ctx)
	if err != nil {
		return Uninstall{Err: err}
	}
	if common > 0 {
		remaining = append(remaining, fmt.Sprintf("%d common instance types and preferences", common))
	}
	if len(remaining) == 0 {
		if err := node.RemoveAll(ctx, s.Client, s.Namespace); err != nil {
			return Uninstall{Err: err}
		}
		// The authorities are last: nothing needs a certificate any more.
		if remaining, err = removeAuthorities(ctx, s); err != nil {
			return Uninstall{Err: err}
		}
	}
	if len(remaining) > 0 {
		return Uninstall{Waiting: strings.Join(remaining, ", ") + " being deleted"}
	}
	return Uninstall{Done: true}
}

// workloads are the users' objects.
type workloads struct {
	vms, sets, pools int
	// creators are the pools, which create VMs, and the VMs and replica sets, which create VMIs.
	creators, vmis []client.Object
}

func findWorkloads(ctx context.Context, c client.Client) (*workloads, error) {
	vms, sets := &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceReplicaSetList{}
	vmis, pools := &v1.VirtualMachineInstanceList{}, &poolv1.VirtualMachinePoolList{}
	for _, list := range []client.ObjectList{vms, sets, vmis, pools} {
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("cannot list %T: %w", list, err)
		}
	}
	found := &workloads{vms: len(vms.Items), sets: len(sets.Items), pools: len(pools.Items)}
	for i := range pools.Items {
		found.creators = append(found.creators, &pools.Items[i])
	}
	for i := range vms.Items {
		found.creators = append(found.creators, &vms.Items[i])
	}
	for i := range sets.Items {
		found.creators = append(found.creators, &sets.Items[i])
	}
	for i := range vmis.Items {
		found.vmis = append(found.vmis, &vmis.Items[i])
	}
	return found, nil
}

// remove deletes pools before VMs, and VMs and replica sets before VMIs, so that none of them creates a new one.
func (w *workloads) remove(ctx context.Context, c client.Client) error {
	for _, o := range append(slices.Clone(w.creators), w.vmis...) {
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		if err := client.IgnoreNotFound(c.Delete(ctx, o)); err != nil {
			return fmt.Errorf("cannot delete workload %s/%s: %w", o.GetNamespace(), o.GetName(), err)
		}
	}
	return nil
}

// maxNamed is how many workloads a message names.
const maxNamed = 3

// String returns how many workloads exist and the names of a few.
func (w *workloads) String() string {
	shown := w.vmis
	if len(shown) == 0 {
		shown = w.creators
	}
	var names []string
	for _, o := range shown[:min(len(shown), maxNamed)] {
		names = append(names, o.GetNamespace()+"/"+o.GetName())
	}
	if len(shown) > maxNamed {
		names = append(names, "…")
	}
	sets := ""
	if w.sets > 0 {
		sets = fmt.Sprintf(", %d VirtualMachineInstanceReplicaSets", w.sets)
	}
	if w.pools > 0 {
		sets += fmt.Sprintf(", %d VirtualMachinePools", w.pools)
	}
	return fmt.Sprintf("%d VirtualMachines%s and %d VirtualMachineInstances exist (%s)", w.vms, sets, len(w.vmis), strings.Join(names, ", "))
}
