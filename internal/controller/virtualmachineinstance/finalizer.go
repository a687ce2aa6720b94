// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// addFinalizer adds the finalizer to a VMI that was created without the webhook.
func (s *scope) addFinalizer(ctx context.Context) error {
	if s.deleting() {
		return nil
	}
	return kit.AddFinalizer(ctx, s.client, &s.vmi, v1.VirtualMachineInstanceFinalizer)
}

// removeFinalizer removes the finalizer of a deleted VMI once it has no Pod, as KubeVirt does: until then clients can
// read how it ended. It is called after the status was written, so that a finished Pod is deleted only when its outcome
// is in the status. The VM that owns the VMI has a finalizer of its own on it.
func (s *scope) removeFinalizer(ctx context.Context) error {
	if !s.deleting() || PodFate(s.pod) == protocol.PodAlive || PodFate(s.otherPod) == protocol.PodAlive {
		return nil
	}
	if gone, err := s.deletePods(ctx); err != nil || !gone {
		return err
	}
	if wait := s.untilShown(); wait > 0 {
		s.requeueIn(wait)
		return nil
	}
	return kit.RemoveFinalizer(ctx, s.client, &s.vmi,
		v1.VirtualMachineInstanceFinalizer, v1.DeprecatedVirtualMachineInstanceFinalizer)
}

// shownFor is how long the final phase of a deleted VMI can be read at least: clients that poll do so every second.
const shownFor = 1500 * time.Millisecond

// endings has when this process first observed that a VMI had ended, by its key. The timestamps of a status have no
// fractions of a second.
type endings struct {
	mu    sync.Mutex
	times map[types.NamespacedName]ending
}

// ending is when a VMI ended.
type ending struct {
	vmi  types.UID
	time time.Time
}

// of returns when this process first observed the end of a VMI, which may be now.
func (e *endings) of(vmi *v1.VirtualMachineInstance, now time.Time) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := client.ObjectKeyFromObject(vmi)
	if known, found := e.times[key]; found && known.vmi == vmi.UID {
		return known.time
	}
	if e.times == nil {
		e.times = map[types.NamespacedName]ending{}
	}
	e.times[key] = ending{vmi.UID, now}
	return now
}

// forget removes a VMI that no longer exists.
func (e *endings) forget(vmi types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.times, vmi)
}

// untilShown returns how long the final phase still has to be shown before the VMI may be removed, or 0. A
// virt-controller that has been restarted observes the end of a VMI anew: the timestamp of the phase prevents it from
// keeping one that ended long ago.
func (s *scope) untilShown() time.Duration {
	if s.stage() != vmistatus.Ended {
		return 0
	}
	now := kit.Now(s.clock)
	observed := s.endings.of(s.vmi, now).Add(shownFor)
	stamped := s.enteredAt(s.vmi.Status.Phase).Add(shownFor + time.Second)
	return max(0, min(observed.Sub(now), stamped.Sub(now)))
}

// deletePods deletes the VMI's remaining Pods and reports whether there was none. A Pod without an owner is adopted
// first: the watch triggers a reconciliation for Pods with an owner only.
func (s *scope) deletePods(ctx context.Context) (gone bool, err error) {
	if s.pod != nil || s.otherPod != nil {
		return false, errors.Join(s.deletePod(ctx), s.deleteOtherPod(ctx))
	}
	pods, err := s.listPods(ctx)
	if err != nil {
		return false, err
	}
	gone = true
	for i := range pods {
		pod := &pods[i]
		if !s.owns(pod) {
			continue
		}
		gone = false
		if !podspec.IsOf(pod, s.vmi) {
			if pod, err = s.adopt(ctx, pod); err != nil {
				return false, err
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if err := kit.Delete(ctx, s.client, pod); err != nil {
			return false, err
		}
	}
	return gone, nil
}

// listPods returns the Pods with the VMI's label. The caller checks their owner.
func (s *scope) listPods(ctx context.Context) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	err := s.client.List(ctx, pods, client.InNamespace(s.vmi.Namespace),
		client.MatchingFields{kit.CreatedByIndex: string(s.vmi.UID)})
	if err != nil {
		return nil, fmt.Errorf("list the Pods of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.vmi), err)
	}
	return pods.Items, nil
}
