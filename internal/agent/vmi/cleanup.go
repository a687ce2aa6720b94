// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

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
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// orphanStopper stops the guest of a Pod that does not exist any more.
type orphanStopper interface {
	phase.DomainReader
	// Destroy ends QEMU.
	Destroy(ctx context.Context, name string) error
}

// cleanup releases what is kept for Pods of a VMI that have finished or do not exist any more. Everything else is in the Pod and
// removed with it. A guest that still runs in a Pod that does not exist is stopped.
func (r *Reconciler) cleanup(ctx context.Context, key types.NamespacedName, pods []corev1.Pod) error {
	live := livePods(pods)
	for uid, cache := range r.podCaches(func(cache *podCache) bool { return cache.key == key }) {
		if live[uid] {
			continue
		}
		if err := r.stopOrphan(ctx, uid, cache); err != nil {
			return err
		}
		r.forget(uid, cache)
	}
	return nil
}

// livePods returns the UIDs of the Pods that have not finished.
func livePods(pods []corev1.Pod) map[types.UID]bool {
	live := map[types.UID]bool{}
	for i := range pods {
		if !podstate.Terminal(&pods[i]) {
			live[pods[i].UID] = true
		}
	}
	return live
}

// podCaches returns the podCaches that match, by the UID of their Pod.
func (r *Reconciler) podCaches(match func(*podCache) bool) map[types.UID]*podCache {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[types.UID]*podCache{}
	for uid, cache := range r.pods {
		if match(cache) {
			found[uid] = cache
		}
	}
	return found
}

func (r *Reconciler) forget(uid types.UID, cache *podCache) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, uid)
	cache.earlyMounts.stop()
	cache.received.forget(r, uid)
	cache.sent.forget(r)
	r.jobs.Forget(uid)
	r.Connections.Forget(uid)
	r.Networks.Forget(uid)
}

// EnqueueAll triggers a reconciliation of all VMIs with a Pod on the node, for example when the broker responds again.
func (r *Reconciler) EnqueueAll() {
	for _, cache := range r.podCaches(func(*podCache) bool { return true }) {
		r.Enqueue(cache.key)
	}
}

// Recheck stops the guests whose Pods were deleted while the node was disconnected from the API server. Watches report these Pods
// too, but up to a minute later, when another guest of the VM may already run elsewhere.
func (r *Reconciler) Recheck(ctx context.Context) error {
	caches := r.podCaches(func(*podCache) bool { return true })
	if len(caches) == 0 {
		return nil
	}
	pods := &corev1.PodList{}
	err := r.APIReader.List(ctx, pods, client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue}, client.MatchingFields{"spec.nodeName": r.Node})
	if err != nil {
		return fmt.Errorf("list the launcher Pods of the node: %w", err)
	}
	live := livePods(pods.Items)
	// In parallel: a libvirtd that does not respond must not keep other guests running.
	var stopping errgroup.Group
	for uid, cache := range caches {
		if !live[uid] {
			stopping.Go(func() error { return r.stopOrphan(ctx, uid, cache) })
		}
	}
	return stopping.Wait()
}

// stopOrphan destroys the guest of a Pod that was deleted while it ran: by force, or because its node was disconnected and marked
// out-of-service. All other components assume that nothing of that Pod runs, so the VM may have another guest. The kubelet stops
// the Pod too, but only after its grace period. Pods of a lost node are marked as failed before they are deleted, which a kubelet
// never does while a guest runs.
func (r *Reconciler) stopOrphan(ctx context.Context, uid types.UID, cache *podCache) error {
	connection, err := r.Connections.Open(hypervisor.PodRef{UID: uid, VMI: cache.key})
	if err != nil {
		return nil //nolint:nilerr // libvirtd ends with a Pod that ends regularly.
	}
	return r.destroyOrphan(ctx, connection, uid, cache)
}

func (r *Reconciler) destroyOrphan(ctx context.Context, guest orphanStopper, uid types.UID, cache *podCache) error {
	domain, err := guest.Domain(ctx, domainName(cache.key))
	switch {
	case errors.Is(err, hypervisor.ErrNoDomain), errors.Is(err, hypervisor.ErrUnreachable):
		return nil
	case err != nil:
		return fmt.Errorf("read the domain of a launcher Pod that does not exist any more: %w", err)
	case !domain.Active():
		return nil
	}
	// The Pod may exist without the label that the list selects.
	pod := &corev1.Pod{}
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = r.APIReader.Get(bounded, client.ObjectKey{Namespace: cache.key.Namespace, Name: cache.pod}, pod)
	switch {
	case err == nil && pod.UID == uid && !podstate.Terminal(pod):
		return nil
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("check whether launcher Pod %s still exists: %w", cache.pod, err)
	}
	log.FromContext(ctx).Info("Destroying the guest of a launcher Pod that does not exist any more", "pod", cache.pod, "uid", uid)
	err = guest.Destroy(ctx, domainName(cache.key))
	if errors.Is(err, hypervisor.ErrNoDomain) || errors.Is(err, hypervisor.ErrUnreachable) {
		return nil
	}
	return err
}
