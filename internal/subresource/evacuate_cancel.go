// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"fmt"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// cancelEvacuation takes back that an instance has to leave its node.
func (a *API) cancelEvacuation(find find) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		vmi, err := find(r.Context(), key(r))
		if err != nil {
			return err
		}
		options := &v1.EvacuateCancelOptions{}
		if err := decode(r, options); err != nil {
			return err
		}
		dry, err := isDryRun(options.DryRun)
		if err != nil {
			return err
		}
		switch vmi.Status.EvacuationNodeName {
		case "": // it stays already
			w.WriteHeader(http.StatusOK)
			return nil
		case options.EvacuationNodeName:
		default:
			return vmiConflict(vmi, fmt.Sprintf("evacuationNodeName: the VMI is to leave node %q and not %q",
				vmi.Status.EvacuationNodeName, options.EvacuationNodeName))
		}
		stays := vmi.DeepCopy()
		stays.Status.EvacuationNodeName = ""
		patch := []client.SubResourcePatchOption{}
		if dry {
			patch = append(patch, client.DryRunAll)
		}
		// The lock is for the node: it may have to leave another by now.
		lock := client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})
		if err := a.Client.Status().Patch(r.Context(), stays, lock, patch...); err != nil {
			return err
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
}
