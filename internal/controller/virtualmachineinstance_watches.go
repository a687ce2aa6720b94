// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/node"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/datavolume"
	"github.com/vireo-project/vireo/internal/podspec"
)

// What VMIs are found by: the claims of their volumes, and their nodes.
const (
	claimIndex = "spec.volumes.persistentVolumeClaim"
	nodeIndex  = "status.nodeName"
	// otherNodeIndex finds a VMI by the node that its guest moves to, or has left.
	otherNodeIndex = "status.migrationState.nodes"
)

// indexForVMIs makes the cache's indexes: of VMIs, and of the events about their Pods.
func indexForVMIs(indexer client.FieldIndexer) error {
	return addIndexes(
		indexer,
		indexBy(&v1.VirtualMachineInstance{}, claimIndex, virtualmachineinstance.ClaimNames),
		indexBy(&v1.VirtualMachineInstance{}, nodeIndex, func(vmi *v1.VirtualMachineInstance) []string { return []string{vmi.Status.NodeName} }),
		indexBy(&v1.VirtualMachineInstance{}, otherNodeIndex, otherNode),
		indexBy(&v1.VirtualMachineInstance{}, importIndex, func(vmi *v1.VirtualMachineInstance) []string {
			if len(virtualmachineinstance.ImportNames(vmi)) == 0 {
				return nil
			}
			return []string{hasImports}
		}),
		indexBy(&v1.VirtualMachineInstance{}, virtualmachineinstance.VSOCKIndex, virtualmachineinstance.VSOCKAddress),
		indexBy(&corev1.Event{}, virtualmachineinstance.PodEventIndex, func(e *corev1.Event) []string {
			if !virtualmachineinstance.IsStartFailure(e) {
				return nil
			}
			return []string{string(e.InvolvedObject.UID)}
		}),
	)
}

// otherNode is the node of a VMI's migration that is not the guest's.
func otherNode(vmi *v1.VirtualMachineInstance) []string {
	switch m := vmi.Status.MigrationState; {
	case m == nil:
		return nil
	case m.TargetNode != "" && m.TargetNode != vmi.Status.NodeName:
		return []string{m.TargetNode}
	case m.SourceNode != "" && m.SourceNode != vmi.Status.NodeName:
		return []string{m.SourceNode}
	default:
		return nil
	}
}

// usersOfClaim are the VMIs that may wait for a claim.
func (r *VirtualMachineInstanceReconciler) usersOfClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	if vmi, state := claim.GetLabels()[v1.PersistentStateLabel]; state {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: claim.GetNamespace(), Name: vmi}}}
	}
	return r.find(ctx, client.InNamespace(claim.GetNamespace()), client.MatchingFields{claimIndex: claim.GetName()})
}

// usersOfDataVolume are the VMIs that may wait for a DataVolume, or all with DataVolumes if the cluster began or ceased to have
// any. A VMI whose volume names the claim of a DataVolume hears of it by its name, too.
func (r *VirtualMachineInstanceReconciler) usersOfDataVolume(ctx context.Context, change datavolume.Change) []ctrl.Request {
	if change.Name == "" {
		return r.find(ctx, client.MatchingFields{importIndex: hasImports})
	}
	return r.find(ctx, client.InNamespace(change.Namespace), client.MatchingFields{claimIndex: change.Name})
}

// guestsOfNode are the VMIs whose status depends on a Node's agent: whose guest is there, moves there or has left it.
func (r *VirtualMachineInstanceReconciler) guestsOfNode(ctx context.Context, host client.Object) []ctrl.Request {
	return append(r.find(ctx, client.MatchingFields{nodeIndex: host.GetName()}),
		r.find(ctx, client.MatchingFields{otherNodeIndex: host.GetName()})...)
}

// ownerOfPod is the VMI whose launcher Pod an event is about.
func (r *VirtualMachineInstanceReconciler) ownerOfPod(ctx context.Context, o client.Object) []ctrl.Request {
	e, ok := o.(*corev1.Event)
	if !ok {
		return nil
	}
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.InvolvedObject.Name}, pod); err != nil {
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot read the Pod that an event is about", "pod", e.InvolvedObject.Name)
		}
		return nil
	}
	owner := podspec.Owner(pod)
	if pod.UID != e.InvolvedObject.UID || owner == nil {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}}}
}

// startFailure passes events that tell why a launcher Pod cannot start. That an event expires tells nothing.
var startFailure = predicate.And(
	predicate.Funcs{DeleteFunc: func(event.DeleteEvent) bool { return false }},
	predicate.NewPredicateFuncs(func(o client.Object) bool {
		e, ok := o.(*corev1.Event)
		return ok && virtualmachineinstance.IsStartFailure(e)
	}),
)

func (r *VirtualMachineInstanceReconciler) find(ctx context.Context, options ...client.ListOption) []ctrl.Request {
	return concerned(ctx, r.Client, &v1.VirtualMachineInstanceList{}, options...)
}

// placeless are the VMIs that have no node yet, whose Pods are made from the configuration.
func (r *VirtualMachineInstanceReconciler) placeless(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.find(ctx, client.MatchingFields{nodeIndex: ""})
}

// underQuota are the VMIs whose Pods a quota may have refused, because they lack a limit that it counts.
func (r *VirtualMachineInstanceReconciler) underQuota(ctx context.Context, quota client.Object) []ctrl.Request {
	return r.find(ctx, client.InNamespace(quota.GetNamespace()), client.MatchingFields{nodeIndex: ""})
}

// demands passes quotas that are new, or count something else than before. How much of them is used is in their status, which changes
// with every Pod of the namespace.
var demands = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, isQuota := e.ObjectOld.(*corev1.ResourceQuota)
		after, stillIs := e.ObjectNew.(*corev1.ResourceQuota)
		return isQuota && stillIs && !equality.Semantic.DeepEqual(before.Spec.Hard, after.Spec.Hard)
	},
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// agentChanges passes updates by which a Node's agent fell silent or came back: another schedulability, or a heartbeat while
// VMs cannot start there. The heartbeats of a healthy Node, one a minute, wake nobody. Of a Node whose agent is silent any change
// counts: whether its kubelet answers, and a taint that says that it is out of service. There are few once its kubelet is silent,
// too.
var agentChanges = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, // every VMI is looked at when the manager starts
	UpdateFunc: func(e event.UpdateEvent) bool {
		label := e.ObjectNew.GetLabels()[node.SchedulableLabel]
		if e.ObjectOld.GetLabels()[node.SchedulableLabel] != label {
			return true
		}
		if e.ObjectNew.GetAnnotations()[node.UnresponsiveAnnotation] != "" || e.ObjectOld.GetAnnotations()[node.UnresponsiveAnnotation] != "" {
			return true
		}
		beat := e.ObjectNew.GetAnnotations()[node.HeartbeatAnnotation]
		return label == strconv.FormatBool(false) && e.ObjectOld.GetAnnotations()[node.HeartbeatAnnotation] != beat
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}
