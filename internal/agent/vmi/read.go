// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// PodIndex is the field that indexes launcher Pods by the name of the VMI that owns them.
const PodIndex = "vmi"

// ownerVMI returns the owner reference of a launcher Pod to its VMI, or nil.
func ownerVMI(obj client.Object) *metav1.OwnerReference {
	if obj.GetLabels()[v1.AppLabel] != launcherpod.AppLabelValue {
		return nil
	}
	return podspec.Owner(obj)
}

// IndexPod returns a Pod's values of PodIndex.
func IndexPod(obj client.Object) []string {
	if owner := ownerVMI(obj); owner != nil {
		return []string{owner.Name}
	}
	return nil
}

func requestOfPod(_ context.Context, obj client.Object) []reconcile.Request {
	if owner := ownerVMI(obj); owner != nil {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: owner.Name}}}
	}
	return nil
}

// requestOfAttachment returns the VMI whose launcher Pod an attachment Pod is for. That Pod was in the cache first: the
// other one is created when it has its node.
func (r *Reconciler) requestOfAttachment(ctx context.Context, obj client.Object) []reconcile.Request {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	of := podspec.AttachmentLauncher(pod)
	if of == nil {
		return nil
	}
	launcher := &corev1.Pod{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: of.Name}, launcher); err != nil ||
		launcher.UID != of.UID {
		return nil // Its own events trigger a reconciliation.
	}
	return requestOfPod(ctx, launcher)
}

// read reads the VMI and its Pod on this node. It returns nil if there is nothing to do: there is no Pod, or it has
// finished, which virt-controller reports.
func (r *Reconciler) read(ctx context.Context, key types.NamespacedName) (*scope, error) {
	pods, err := r.listPods(ctx, key)
	if err != nil {
		return nil, err
	}
	if err := r.cleanup(ctx, key, pods); err != nil {
		return nil, err
	}
	s, err := r.readGuest(ctx, key, pods)
	if err != nil || s == nil {
		return nil, err
	}
	s.use(r.podCacheOf(s.Pod), r.devices, r.jobs)
	if s.VMI == nil && s.Incoming == nil {
		// The VMI is not assigned yet, or deleted, or replaced by another one of the same name.
		if err := r.readUnassigned(ctx, s); err != nil {
			return nil, err
		}
	}
	s.Assigned = s.VMI != nil && s.VMI.Status.NodeName == r.Node &&
		vmistatus.InCharge(&s.VMI.Status) == vmistatus.Handler && vmistatus.StageOf(s.VMI.Status.Phase) == vmistatus.Live
	return s, nil
}

// readGuest reads the VMI and selects its Pod, without the podCache: that belongs to the reconciliation of the key.
func (r *Reconciler) readGuest(ctx context.Context, key types.NamespacedName, pods []corev1.Pod) (*scope, error) {
	vmi, err := r.readVMI(ctx, key)
	if err != nil {
		return nil, err
	}
	pod := LivePod(r.Node, vmi, pods)
	if pod == nil {
		return nil, nil
	}
	s := &scope{Scope: phase.Scope{Key: key, Now: r.Clock.Now(), Clock: r.Clock, Config: r.Config(), Pod: pod}}
	switch {
	case vmi != nil && vmi.UID == ownerVMI(pod).UID && vmi.Status.NodeName == r.Node:
		s.Before, s.VMI = vmi, vmi.DeepCopy()
	case vmi != nil && vmi.UID == ownerVMI(pod).UID && isTarget(vmi, r.Node, pod.Name):
		s.Incoming = vmi
	}
	return s, nil
}

// listPods lists the launcher Pods of a VMI on this node.
func (r *Reconciler) listPods(ctx context.Context, key types.NamespacedName) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := r.Client.List(ctx, pods, client.InNamespace(key.Namespace),
		client.MatchingFields{PodIndex: key.Name}); err != nil {
		return nil, fmt.Errorf("list launcher Pods: %w", err)
	}
	return pods.Items, nil
}

// readVMI reads a VMI that is on the node or migrates to it. It returns nil if there is none.
func (r *Reconciler) readVMI(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	for _, from := range []client.Reader{r.Client, r.Incoming} {
		vmi := &v1.VirtualMachineInstance{}
		err := from.Get(ctx, key, vmi)
		if err == nil {
			return vmi, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read the VMI: %w", err)
		}
	}
	return nil, nil
}

// readUnassigned reads a VMI that is not in the cache, once, so that its domain can be prepared before virt-controller
// assigns the VMI.
func (r *Reconciler) readUnassigned(ctx context.Context, s *scope) error {
	s.Unassigned = s.cache.vmi
	if s.Unassigned != nil || s.Pod.DeletionTimestamp != nil {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{}
	err := r.api.Do(ctx, s.Key.Namespace, func() error { return r.APIReader.Get(ctx, s.Key, vmi) })
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if vmi.UID == ownerVMI(s.Pod).UID {
		s.cache.vmi, s.Unassigned = vmi, vmi
	}
	return nil
}

// LivePod returns the launcher Pod on the node that has not finished, or nil. If there are several, it is the one that
// the guest runs in or migrates to, or else the newest.
func LivePod(node string, vmi *v1.VirtualMachineInstance, pods []corev1.Pod) *corev1.Pod {
	var live *corev1.Pod
	named := ""
	if vmi != nil {
		named = podspec.OwnPodName(vmi)
		if m := vmi.Status.MigrationState; vmi.Status.NodeName != node && m != nil && m.TargetNode == node {
			named = m.TargetPod
		}
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName != node || podstate.Terminal(pod) {
			continue
		}
		if pod.Name == named {
			return pod
		}
		if live == nil || live.CreationTimestamp.Before(&pod.CreationTimestamp) {
			live = pod
		}
	}
	return live
}

// Triggers is the controller's source of VMIs whose hypervisor reported a change. Callbacks on libvirt's event loop,
// which all connections share, call Enqueue. So it never blocks, and contains a VMI at most once however many events
// there are.
type Triggers struct {
	mu    sync.Mutex
	queue queue
	// pending are the VMIs that were enqueued before the controller started.
	pending sets.Set[types.NamespacedName]
}

// NewTriggers returns Triggers for one controller.
func NewTriggers() *Triggers { return &Triggers{pending: sets.New[types.NamespacedName]()} }

// Enqueue triggers a reconciliation of a VMI. It does not block.
func (t *Triggers) Enqueue(vmi types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil {
		t.pending.Insert(vmi)
		return
	}
	t.queue.Add(reconcile.Request{NamespacedName: vmi})
}

// Start implements source.Source: from now on VMIs are added to the controller's queue, which drops duplicates.
func (t *Triggers) Start(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = q
	for vmi := range t.pending {
		q.Add(reconcile.Request{NamespacedName: vmi})
	}
	t.pending = nil
	return nil
}
