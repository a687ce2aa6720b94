// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// AbandonedVMs returns the VMs that are locked for an object of this key that does not concern them, because it was
// deleted by force, and perhaps created again for another VM. The index of the cache finds VMs by the name of the
// object for which they are locked. vmOf returns the name of the VM that an object concerns.
func AbandonedVMs[T any, P interface {
	*T
	client.Object
}](
	ctx context.Context, cache, live client.Reader, index string, key client.ObjectKey, vmOf func(P) string,
) ([]v1.VirtualMachine, error) {
	vms := &v1.VirtualMachineList{}
	if err := cache.List(ctx, vms, client.InNamespace(key.Namespace), client.MatchingFields{index: key.Name}); err != nil {
		return nil, fmt.Errorf("list the VirtualMachines that are locked for %s %s: %w", kindOf(P(new(T))), key, err)
	}
	for _, reader := range []client.Reader{cache, live} { // The cache may be stale.
		if len(vms.Items) == 0 {
			break
		}
		object, err := Read(ctx, key, P(new(T)), reader)
		if err != nil {
			return nil, err
		}
		vms.Items = slices.DeleteFunc(vms.Items, func(vm v1.VirtualMachine) bool {
			return object != nil && vm.Name == vmOf(object)
		})
	}
	return vms.Items, nil
}
