// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migration/eviction"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// cancelEvacuation clears status.evacuationNodeName of a VMI.
func (a *API) cancelEvacuation(find vmiFinder) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		vmi, err := find(r.Context(), key(r))
		if err != nil {
			return err
		}
		if err := a.checkDrainTaint(r.Context(), vmi); err != nil {
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
		case "": // no evacuation
			w.WriteHeader(http.StatusOK)
			return nil
		case options.EvacuationNodeName:
		default:
			return vmiConflict(vmi, fmt.Sprintf("evacuationNodeName: the VMI is to leave node %q and not %q",
				vmi.Status.EvacuationNodeName, options.EvacuationNodeName))
		}
		changed := vmi.DeepCopy()
		changed.Status.EvacuationNodeName = ""
		patch := []client.SubResourcePatchOption{}
		if dry {
			patch = append(patch, client.DryRunAll)
		}
		// The optimistic lock makes sure that an evacuation of another node, requested meanwhile, is not canceled.
		if err := a.Client.Status().Patch(r.Context(), changed, optimistic.MergeFrom(vmi), patch...); err != nil {
			return err
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
}

// checkDrainTaint returns an error if the VMI's node has the drain taint: VMIs of such a node are evacuated regardless of their status.
func (a *API) checkDrainTaint(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	name, key := cmp.Or(vmi.Status.EvacuationNodeName, vmi.Status.NodeName), a.Config().Migrations.NodeDrainTaintKey
	if name == "" || key == nil {
		return nil
	}
	node := &corev1.Node{}
	if err := a.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if eviction.HasTaint(node, *key) {
		taint := corev1.Taint{Key: *key, Effect: corev1.TaintEffectNoSchedule}
		// KubeVirt's message.
		return apierrors.NewBadRequest(fmt.Sprintf("Node %q has NodeDrainTaintKey %q", name, taint.String()))
	}
	return nil
}
