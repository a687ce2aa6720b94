// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"fmt"
	"strconv"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/node"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
)

// What VMIs are found by: the claims of their volumes, and their node.
const (
	claimIndex = "spec.volumes.persistentVolumeClaim"
	nodeIndex  = "status.nodeName"
)

func indexVMIs(indexer client.FieldIndexer) error {
	for field, values := range map[string]func(*v1.VirtualMachineInstance) []string{
		claimIndex: virtualmachineinstance.ClaimNames,
		nodeIndex:  func(vmi *v1.VirtualMachineInstance) []string { return []string{vmi.Status.NodeName} },
	} {
		err := indexer.IndexField(context.Background(), &v1.VirtualMachineInstance{}, field, func(o client.Object) []string {
			vmi, ok := o.(*v1.VirtualMachineInstance)
			if !ok {
				return nil
			}
			return values(vmi)
		})
		if err != nil {
			return fmt.Errorf("index VirtualMachineInstances by %s: %w", field, err)
		}
	}
	return nil
}

// usersOfClaim are the VMIs that may wait for a claim.
func (r *VirtualMachineInstanceReconciler) usersOfClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	return r.find(ctx, client.InNamespace(claim.GetNamespace()), client.MatchingFields{claimIndex: claim.GetName()})
}

// guestsOfNode are the VMIs whose status depends on a Node's agent.
func (r *VirtualMachineInstanceReconciler) guestsOfNode(ctx context.Context, host client.Object) []ctrl.Request {
	return r.find(ctx, client.MatchingFields{nodeIndex: host.GetName()})
}

func (r *VirtualMachineInstanceReconciler) find(ctx context.Context, options ...client.ListOption) []ctrl.Request {
	list := &v1.VirtualMachineInstanceList{}
	if err := r.Client.List(ctx, list, options...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the VirtualMachineInstances that a change concerns")
		return nil
	}
	requests := make([]ctrl.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// agentNews passes what tells that a Node's agent fell silent or came back: another schedulability, or a heartbeat while
// VMs cannot start there. The heartbeats of a healthy Node, one a minute, wake nobody.
var agentNews = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, // every VMI is looked at when the manager starts
	UpdateFunc: func(e event.UpdateEvent) bool {
		label := e.ObjectNew.GetLabels()[node.SchedulableLabel]
		if e.ObjectOld.GetLabels()[node.SchedulableLabel] != label {
			return true
		}
		beat := e.ObjectNew.GetAnnotations()[node.HeartbeatAnnotation]
		return label == strconv.FormatBool(false) && e.ObjectOld.GetAnnotations()[node.HeartbeatAnnotation] != beat
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}
