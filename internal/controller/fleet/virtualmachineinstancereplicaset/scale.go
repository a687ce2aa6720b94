// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// burst is how many VMIs one reconciliation creates or deletes at most. KubeVirt's value, from Kubernetes.
const burst = 250

// scale creates or deletes VMIs until the wanted number is active.
func scale(ctx context.Context, s *Scope) error {
	running := s.pick(active)
	switch missing := s.wanted() - len(running); {
	case missing > 0:
		return create(ctx, s, min(missing, burst))
	case missing < 0:
		sortForRemoval(running)
		err := remove(ctx, s, running[:min(-missing, burst)], actionScaleDown,
			"Stopped the virtual machine by deleting the virtual machine instance %s")
		s.fail(ReasonFailedDelete, actionScaleDown, "Error deleting virtual machine instance: %v", err)
		return err
	default:
		return nil
	}
}

// removeFinished deletes the finished VMIs, which scale has replaced.
func removeFinished(ctx context.Context, s *Scope) error {
	ended := s.pick(finished)
	err := remove(ctx, s, ended[:min(len(ended), burst)], actionReplace, "Deleted finished virtual machine: %s")
	s.fail(ReasonFailedDelete, actionReplace, "Error deleting finished virtual machine: %v", err)
	return err
}

// create creates VMIs in batches of one, two, four and so on, so that a problem that affects all of them costs few
// requests.
func create(ctx context.Context, s *Scope, count int) error {
	free := newNames(s.Set)
	for i := range s.Neighbors {
		free.taken[s.Neighbors[i].Name] = true
	}
	for _, vmi := range s.Instances {
		free.taken[vmi.Name] = true
	}
	made, err := kit.CreateInBatches(count, func() (*v1.VirtualMachineInstance, error) { return createOne(ctx, s, free) })
	s.Instances = append(s.Instances, made...)
	s.fail(ReasonFailedCreate, actionScaleUp, "Error creating virtual machine instance: %v", err)
	return err
}

// createOne creates one VMI under the next free name.
func createOne(ctx context.Context, s *Scope, free *names) (*v1.VirtualMachineInstance, error) {
	for {
		vmi := render(s.Set, free.take())
		err := s.Client.Create(ctx, vmi)
		if err == nil {
			s.record(vmi, ReasonSuccessfulCreate, actionScaleUp,
				"Started the virtual machine by creating the new virtual machine instance %v", vmi.Name)
			return vmi, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(vmi), err)
		}
		other, err := ownReplica(ctx, s, vmi)
		if other != nil || err != nil {
			return other, err
		}
	}
}

// ownReplica returns the existing VMI of that name if it is an active replica of this set, which another reconciliation
// has just created, and nil otherwise.
func ownReplica(ctx context.Context, s *Scope, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error) {
	other := &v1.VirtualMachineInstance{}
	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(vmi), other)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get VirtualMachineInstance %s, which exists: %w", client.ObjectKeyFromObject(vmi), err)
	case metav1.IsControlledBy(other, s.Set) && active(other) && s.Selector.Matches(labels.Set(other.Labels)):
		return other, nil
	default:
		return nil, nil
	}
}

// render makes a VMI of the set's template. Its metadata is the template's, as in KubeVirt.
func render(set *v1.VirtualMachineInstanceReplicaSet, name string) *v1.VirtualMachineInstance {
	template := set.Spec.Template.DeepCopy()
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:    set.Namespace,
			Name:         name,
			GenerateName: generateName(set),
			Labels:       template.ObjectMeta.Labels,
			Annotations:  template.ObjectMeta.Annotations,
			Finalizers:   template.ObjectMeta.Finalizers,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(set, v1.VirtualMachineInstanceReplicaSetGroupVersionKind),
			},
		},
		Spec: template.Spec,
	}
}

// remove deletes VMIs if they are still at the version that was read: one may have been released from the set
// meanwhile.
func remove(ctx context.Context, s *Scope, vmis []*v1.VirtualMachineInstance, action, message string) error {
	return kit.InBatches(len(vmis), func(i int) error {
		vmi := vmis[i]
		err := s.Client.Delete(ctx, vmi, kit.Unchanged(vmi))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(vmi), err)
		}
		if err == nil {
			s.record(vmi, ReasonSuccessfulDelete, action, message, vmi.UID)
		}
		vmi.DeletionTimestamp = ptr.To(metav1.NewTime(s.Now))
		return nil
	})
}

// record records an event of the type Normal about the set; vmi, if not nil, is the related object.
func (s *Scope) record(vmi *v1.VirtualMachineInstance, reason, action, note string, args ...any) {
	if vmi == nil {
		s.Recorder.Eventf(s.Set, nil, corev1.EventTypeNormal, reason, action, note, args...)
		return
	}
	s.Recorder.Eventf(s.Set, vmi, corev1.EventTypeNormal, reason, action, note, args...)
}

// generateName returns the prefix of the names of the set's VMIs. Source: KubeVirt's getVirtualMachineBaseName.
func generateName(set *v1.VirtualMachineInstanceReplicaSet) string {
	switch meta := &set.Spec.Template.ObjectMeta; {
	case meta.Name != "":
		return meta.Name
	case meta.GenerateName != "":
		return meta.GenerateName
	default:
		return set.Name
	}
}

// names generates names for new VMIs: the first of the set's own sequence that are free. Reconciliations that observe
// the same VMIs generate the same names, so that the API server rejects the VMIs that a concurrent or stale one would
// add.
type names struct {
	mu     sync.Mutex
	prefix string
	uid    types.UID
	next   uint64
	taken  map[string]bool
}

func newNames(set *v1.VirtualMachineInstanceReplicaSet) *names {
	prefix := generateName(set)
	return &names{prefix: prefix[:min(len(prefix), kit.PrefixLength)], uid: set.UID, taken: map[string]bool{}}
}

// take returns a free name. It returns each name only once.
func (n *names) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		name := n.prefix + kit.Suffix(n.uid, n.next)
		n.next++
		if !n.taken[name] {
			n.taken[name] = true
			return name
		}
	}
}

// active reports whether a VMI counts as a replica. A VMI in the phase Unknown does, because it may still run.
func active(vmi *v1.VirtualMachineInstance) bool {
	return vmi.DeletionTimestamp == nil && !finishing(vmi)
}

// finished reports whether a VMI is to be replaced.
func finished(vmi *v1.VirtualMachineInstance) bool {
	return vmi.DeletionTimestamp == nil && finishing(vmi)
}

// finishing reports whether a VMI has finished or will certainly finish because its Pod is being deleted, for example
// by a drain: a deletion cannot be undone. KubeVirt calls the latter unknown.
func finishing(vmi *v1.VirtualMachineInstance) bool {
	ready := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceReady)
	return vmi.IsFinal() ||
		ready != nil && ready.Status == corev1.ConditionFalse && ready.Reason == v1.PodTerminatingReason
}

func isReady(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceReady)
}

// progress orders VMIs by how far they have started.
func progress(vmi *v1.VirtualMachineInstance) int {
	switch vmi.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		return 0
	case v1.Scheduling:
		return 1
	case v1.Scheduled:
		return 2
	default:
		return 3
	}
}

// sortForRemoval sorts VMIs by the order in which to delete them: not ready before ready, then by progress, then newest
// first. The name decides last, so that the order is the same in each reconciliation.
func sortForRemoval(vmis []*v1.VirtualMachineInstance) {
	slices.SortFunc(vmis, func(a, b *v1.VirtualMachineInstance) int {
		return cmp.Or(
			cmp.Compare(rankReady(a), rankReady(b)),
			cmp.Compare(progress(a), progress(b)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
}

func rankReady(vmi *v1.VirtualMachineInstance) int {
	if isReady(vmi) {
		return 1
	}
	return 0
}
