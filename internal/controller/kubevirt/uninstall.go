// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Remove takes the installation away: guests first, because they need the agents to shut down, then the rest.
func Remove(ctx context.Context, s *Scope) Uninstall {
	vms, vmis := &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{}
	if err := s.Client.List(ctx, vms); err != nil {
		return Uninstall{Err: fmt.Errorf("cannot list VirtualMachines: %w", err)}
	}
	if err := s.Client.List(ctx, vmis); err != nil {
		return Uninstall{Err: fmt.Errorf("cannot list VirtualMachineInstances: %w", err)}
	}
	if len(vms.Items)+len(vmis.Items) > 0 {
		left := workloads(vms.Items, vmis.Items)
		if s.KubeVirt.Spec.UninstallStrategy == v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist {
			return Uninstall{Blocked: left + ": delete them, or set spec.uninstallStrategy to RemoveWorkloads"}
		}
		return Uninstall{Waiting: left, Err: removeWorkloads(ctx, s.Client, vms.Items, vmis.Items)}
	}

	remaining, err := s.installer().Remove(ctx)
	if err != nil {
		return Uninstall{Err: err}
	}
	if len(remaining) > 0 {
		return Uninstall{Waiting: strings.Join(remaining, ", ") + " being deleted"}
	}
	return Uninstall{Done: true}
}

// removeWorkloads deletes the VMs before the VMIs, so that no VM starts a new one.
func removeWorkloads(ctx context.Context, c client.Client, vms []v1.VirtualMachine, vmis []v1.VirtualMachineInstance) error {
	objects := make([]client.Object, 0, len(vms)+len(vmis))
	for i := range vms {
		objects = append(objects, &vms[i])
	}
	for i := range vmis {
		objects = append(objects, &vmis[i])
	}
	for _, o := range objects {
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		if err := client.IgnoreNotFound(c.Delete(ctx, o)); err != nil {
			return fmt.Errorf("cannot delete workload %s/%s: %w", o.GetNamespace(), o.GetName(), err)
		}
	}
	return nil
}

// named is how many workloads a message names.
const named = 3

// workloads says how many there are and names a few.
func workloads(vms []v1.VirtualMachine, vmis []v1.VirtualMachineInstance) string {
	var names []string
	for i := range vmis {
		names = append(names, vmis[i].Namespace+"/"+vmis[i].Name)
	}
	if len(vmis) == 0 {
		for i := range vms {
			names = append(names, vms[i].Namespace+"/"+vms[i].Name)
		}
	}
	if len(names) > named {
		names = append(names[:named:named], "…")
	}
	return fmt.Sprintf("%d VirtualMachines and %d VirtualMachineInstances exist (%s)", len(vms), len(vmis), strings.Join(names, ", "))
}
