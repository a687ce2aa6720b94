// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/node"
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

// awaited are the kinds whose objects an uninstallation deletes and waits for, in the order of their deletion: what
// creates others comes before them. SetupWithManager watches each of them.
var awaited = []struct {
	kind client.Object
	list func() client.ObjectList
}{
	{&poolv1.VirtualMachinePool{}, func() client.ObjectList { return &poolv1.VirtualMachinePoolList{} }},
	{&v1.VirtualMachine{}, func() client.ObjectList { return &v1.VirtualMachineList{} }},
	{&v1.VirtualMachineInstanceReplicaSet{}, func() client.ObjectList { return &v1.VirtualMachineInstanceReplicaSetList{} }},
	{&v1.VirtualMachineInstance{}, func() client.ObjectList { return &v1.VirtualMachineInstanceList{} }},
}

// workloads are the users' objects.
type workloads struct {
	vms, sets, pools int
	// creators are the pools, which create VMs, and the VMs and replica sets, which create VMIs.
	creators, vmis []client.Object
}

func findWorkloads(ctx context.Context, c client.Client) (*workloads, error) {
	found := &workloads{}
	for _, a := range awaited {
		list := a.list()
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("cannot list %T: %w", list, err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error { return found.add(item) })
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (w *workloads) add(item runtime.Object) error {
	switch o := item.(type) {
	case *poolv1.VirtualMachinePool:
		w.pools, w.creators = w.pools+1, append(w.creators, o)
	case *v1.VirtualMachine:
		w.vms, w.creators = w.vms+1, append(w.creators, o)
	case *v1.VirtualMachineInstanceReplicaSet:
		w.sets, w.creators = w.sets+1, append(w.creators, o)
	case *v1.VirtualMachineInstance:
		w.vmis = append(w.vmis, o)
	default:
		return fmt.Errorf("%T is no workload", item)
	}
	return nil
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
	return fmt.Sprintf("%d VirtualMachines%s and %d VirtualMachineInstances exist (%s)", w.vms, sets, len(w.vmis),
		strings.Join(names, ", "))
}
