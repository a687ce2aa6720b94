// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Indexes of VMIs in the cache. kit.NodeIndex is another one.
const (
	// claimIndex is by the claims of the volumes.
	claimIndex = "spec.volumes.persistentVolumeClaim"
	// otherNodeIndex is that of its migration's source or target on which the guest is not.
	otherNodeIndex = "status.migrationState.nodes"
)

// indexForVMIs adds the indexes of VMIs and of the events about their Pods to the cache.
func indexForVMIs(indexer client.FieldIndexer) error {
	return kit.AddIndexes(
		indexer,
		kit.IndexBy(&v1.VirtualMachineInstance{}, claimIndex, ClaimNames),
		kit.IndexBy(&v1.VirtualMachineInstance{}, kit.NodeIndex, func(vmi *v1.VirtualMachineInstance) []string {
			return []string{vmi.Status.NodeName}
		}),
		kit.IndexBy(&v1.VirtualMachineInstance{}, otherNodeIndex, otherNode),
		kit.IndexBy(&v1.VirtualMachineInstance{}, kit.DataVolumeIndex, func(vmi *v1.VirtualMachineInstance) []string {
			if len(importNames(vmi)) == 0 {
				return nil
			}
			return []string{kit.HasDataVolumes}
		}),
		kit.IndexBy(&v1.VirtualMachineInstance{}, VSOCKIndex, VSOCKAddress),
		kit.IndexBy(&corev1.Pod{}, AttachmentIndex, AttachmentOf),
		kit.IndexBy(&corev1.Pod{}, kit.CreatedByIndex, func(pod *corev1.Pod) []string { return kit.CreatedBy(pod) }),
		kit.IndexBy(&corev1.Event{}, podEventIndex, func(e *corev1.Event) []string {
			if !IsStartFailure(e) {
				return nil
			}
			return []string{string(e.InvolvedObject.UID)}
		}),
	)
}

// otherNode returns the value of otherNodeIndex.
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

// UsersOfClaim returns the VMIs that may wait for a claim.
func (r *Reconciler) UsersOfClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	if vmi := UserOfState(claim); vmi != "" {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: claim.GetNamespace(), Name: vmi}}}
	}
	return r.find(ctx, client.InNamespace(claim.GetNamespace()), client.MatchingFields{claimIndex: claim.GetName()})
}

// UserOfState returns the name of the VM and the VMI whose persistent state is in a claim, or "" if the claim is
// another one. The label has only a part of a long name, which the owner has; a restored claim may have no owner.
func UserOfState(claim client.Object) string {
	label := claim.GetLabels()[v1.PersistentStateLabel]
	if owner := metav1.GetControllerOf(claim); owner != nil && label == podspec.LabelValue(owner.Name) {
		return owner.Name
	}
	return label
}

// usersOfDataVolume returns the VMIs that may wait for a DataVolume, and all with DataVolumes if the kind was installed
// or removed. A DataVolume has the name of its claim, so that claimIndex finds VMIs whose volumes name either.
func (r *Reconciler) usersOfDataVolume(ctx context.Context, change datavolume.Change) []ctrl.Request {
	if change.Name == "" {
		return r.find(ctx, client.MatchingFields{kit.DataVolumeIndex: kit.HasDataVolumes})
	}
	return r.find(ctx, client.InNamespace(change.Namespace), client.MatchingFields{claimIndex: change.Name})
}

// guestsOfNode returns the VMIs whose status depends on a Node's agent: those whose guest is on the node, and those
// whose migration has it as source or target.
func (r *Reconciler) guestsOfNode(ctx context.Context, host client.Object) []ctrl.Request {
	return append(r.find(ctx, client.MatchingFields{kit.NodeIndex: host.GetName()}),
		r.find(ctx, client.MatchingFields{otherNodeIndex: host.GetName()})...)
}

// ownerOfPod returns the VMI whose launcher Pod or attachment Pod an event is about.
func (r *Reconciler) ownerOfPod(ctx context.Context, o client.Object) []ctrl.Request {
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
	if pod.UID != e.InvolvedObject.UID {
		return nil
	}
	if owner := podspec.Owner(pod); owner != nil {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}}}
	}
	return r.userOfAttachment(ctx, pod)
}

// userOfAttachment returns the VMI that an attachment Pod is for. Without its launcher Pod, the garbage collector
// deletes it.
func (r *Reconciler) userOfAttachment(ctx context.Context, o client.Object) []ctrl.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok || podspec.AttachmentUser(pod) == "" {
		return nil
	}
	of := podspec.AttachmentLauncher(pod)
	if of == nil {
		return nil
	}
	launcher := &corev1.Pod{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: of.Name}, launcher); err != nil {
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot read the launcher Pod of an attachment Pod", "pod", pod.Name)
		}
		return nil
	}
	owner := podspec.Owner(launcher)
	if launcher.UID != of.UID || owner == nil {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}}}
}

// startFailure passes events that report why a launcher Pod cannot start, but not their expiry.
var startFailure = predicate.And(kit.ExceptDeletions(predicate.Funcs{}), kit.Objects(IsStartFailure))

func (r *Reconciler) find(ctx context.Context, options ...client.ListOption) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1.VirtualMachineInstanceList{}, options...)
}

// unassigned returns the VMIs without a node, whose Pods are rendered with the configuration.
func (r *Reconciler) unassigned(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.find(ctx, client.MatchingFields{kit.NodeIndex: ""})
}

// UnderQuota returns the VMIs whose Pods a quota may have refused for lack of a limit.
func (r *Reconciler) UnderQuota(ctx context.Context, quota client.Object) []ctrl.Request {
	return r.find(ctx, client.InNamespace(quota.GetNamespace()), client.MatchingFields{kit.NodeIndex: ""})
}

// QuotaChanges passes quotas that are new or whose spec counts something else than before. The status of a quota, its
// usage, changes with every Pod of the namespace.
var QuotaChanges = kit.ExceptDeletions(kit.Updates(func(before, after *corev1.ResourceQuota) bool {
	return !equality.Semantic.DeepEqual(before.Spec.Hard, after.Spec.Hard)
}))

// agentChanges passes updates of a Node by which its agent may have become silent or come back: a change of the
// schedulable label, and a heartbeat while the label is false. It drops the heartbeats of a healthy Node, one a minute.
// Of a Node whose agent is silent it passes every update, because the verdict depends on the kubelet's condition and on
// taints; there are few once the kubelet is silent as well.
var agentChanges = kit.ExceptCreations(kit.Updates(func(before, after client.Object) bool {
	label := after.GetLabels()[node.SchedulableLabel]
	if before.GetLabels()[node.SchedulableLabel] != label {
		return true
	}
	if after.GetAnnotations()[node.UnresponsiveAnnotation] != "" ||
		before.GetAnnotations()[node.UnresponsiveAnnotation] != "" {
		return true
	}
	beat := after.GetAnnotations()[node.HeartbeatAnnotation]
	return label == strconv.FormatBool(false) && before.GetAnnotations()[node.HeartbeatAnnotation] != beat
}))
