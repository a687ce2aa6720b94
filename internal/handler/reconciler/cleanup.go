// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// cleanup lets go of the Pods of a VMI that have finished or are gone. All that was made lies in the Pod and goes with it; a guest
// that is still there in a Pod that is gone is ended.
func (r *Reconciler) cleanup(ctx context.Context, key types.NamespacedName, pods []corev1.Pod) error {
	live := livePods(pods)
	for uid, m := range r.memories(func(m *podMemory) bool { return m.key == key }) {
		if live[uid] {
			continue
		}
		if err := r.endOrphan(ctx, uid, m); err != nil {
			return err
		}
		r.forget(uid, m)
	}
	return nil
}

// livePods are the Pods that may run.
func livePods(pods []corev1.Pod) map[types.UID]bool {
	live := map[types.UID]bool{}
	for i := range pods {
		if !finished(&pods[i]) {
			live[pods[i].UID] = true
		}
	}
	return live
}

// memories are those of the Pods that match.
func (r *Reconciler) memories(match func(*podMemory) bool) map[types.UID]*podMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[types.UID]*podMemory{}
	for uid, m := range r.memory {
		if match(m) {
			found[uid] = m
		}
	}
	return found
}

func (r *Reconciler) forget(uid types.UID, m *podMemory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, uid)
	r.Arrivals.Forget(uid, m.migration)
	r.copies.Forget(m.leaving)
	r.Machines.Forget(uid)
	r.Networks.Forget(uid)
}

// Recheck ends the guests that were given up while the node was cut off. Watches notice it as well, but only after a pause of up to
// a minute, and another guest of the VM may run already.
func (r *Reconciler) Recheck(ctx context.Context) error {
	memories := r.memories(func(*podMemory) bool { return true })
	if len(memories) == 0 {
		return nil
	}
	pods := &corev1.PodList{}
	err := r.Reader.List(ctx, pods, client.MatchingLabels{v1.AppLabel: LauncherLabel}, client.MatchingFields{"spec.nodeName": r.Node})
	if err != nil {
		return fmt.Errorf("list the launcher Pods of the node: %w", err)
	}
	live := livePods(pods.Items)
	// All at once: a libvirtd that does not answer must not keep the guests of others.
	var ending errgroup.Group
	for uid, m := range memories {
		if !live[uid] {
			ending.Go(func() error { return r.endOrphan(ctx, uid, m) })
		}
	}
	return ending.Wait()
}

// endOrphan ends the guest of a Pod that was taken away though it ran: by force, or because its node was cut off and declared out of
// service meanwhile. To everybody else nothing of that Pod runs, and another guest of the VM may. The kubelet ends the Pod as well, but
// gives it its grace period. Whoever removes Pods of a lost node says first that they have failed, which no kubelet says while a guest
// is there.
func (r *Reconciler) endOrphan(ctx context.Context, uid types.UID, m *podMemory) error {
	machine, err := r.Machines.Open(hypervisor.PodRef{UID: uid, VMI: m.key})
	if err != nil {
		return nil // A Pod that ended in order takes its libvirtd with it.
	}
	domain, err := machine.Domain(ctx, domainName(m.key))
	switch {
	case errors.Is(err, hypervisor.ErrNoDomain), errors.Is(err, hypervisor.ErrUnreachable):
		return nil
	case err != nil:
		return fmt.Errorf("look for a guest that is left in a Pod that is gone: %w", err)
	case !domain.Active():
		return nil
	}
	// A Pod that lost the label by which it is found is not gone.
	pod := &corev1.Pod{}
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = r.Reader.Get(bounded, client.ObjectKey{Namespace: m.key.Namespace, Name: m.pod}, pod)
	switch {
	case err == nil && pod.UID == uid && !finished(pod):
		return nil
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("look whether launcher Pod %s is gone: %w", m.pod, err)
	}
	log.FromContext(ctx).Info("Destroying the guest of a launcher Pod that is gone", "pod", m.pod, "uid", uid)
	err = machine.Destroy(ctx, domainName(m.key))
	if errors.Is(err, hypervisor.ErrNoDomain) || errors.Is(err, hypervisor.ErrUnreachable) {
		return nil
	}
	return err
}
