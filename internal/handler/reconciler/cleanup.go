// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// cleanup lets go of the Pods of a VMI that have finished or are gone. All that was made lies in the Pod and goes with it; a guest
// that is still there in a Pod that is gone is ended.
func (r *Reconciler) cleanup(ctx context.Context, key types.NamespacedName, pods []corev1.Pod) error {
	live, known := map[types.UID]bool{}, map[types.UID]bool{}
	for i := range pods {
		known[pods[i].UID] = true
		if !finished(&pods[i]) {
			live[pods[i].UID] = true
		}
	}
	for uid, m := range r.memories(key) {
		if live[uid] {
			continue
		}
		if !known[uid] {
			if err := r.endOrphan(ctx, uid, m); err != nil {
				return err
			}
		}
		r.forget(uid, m)
	}
	return nil
}

// memories are those of a VMI's Pods.
func (r *Reconciler) memories(key types.NamespacedName) map[types.UID]*podMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[types.UID]*podMemory{}
	for uid, m := range r.memory {
		if m.key == key {
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
	r.Machines.Forget(uid)
	r.Networks.Forget(uid)
}

// endOrphan ends the guest of a Pod that was taken away though it ran: by force, or because its node was cut off and declared out of
// service meanwhile. To everybody else nothing of that Pod runs, and another guest of the VM may. The kubelet ends the Pod as well, but
// gives it its grace period.
func (r *Reconciler) endOrphan(ctx context.Context, uid types.UID, m *podMemory) error {
	machine, err := r.Machines.Open(hypervisor.PodRef{UID: uid, VMI: m.key})
	if err != nil {
		return nil //nolint:nilerr // a Pod that ended in order takes its libvirtd with it
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
	// The cache has Pods with a label only. A Pod that lost it is not gone.
	pod := &corev1.Pod{}
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = r.Reader.Get(bounded, client.ObjectKey{Namespace: m.key.Namespace, Name: m.pod}, pod)
	switch {
	case err == nil && pod.UID == uid:
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
