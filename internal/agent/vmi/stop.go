// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/jobs/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/outcome"
)

const (
	// shutdownInterval is the time between two presses of the power button: a guest that is booting ignores the
	// first. Source: kubevirt/kubevirt pkg/virt-handler, gracefulShutdownRetry.
	shutdownInterval = 5 * time.Second
	// destroySlack is how long after the grace period the agent destroys the domain. virt-launcher, which counts the
	// same period from its SIGTERM, should be first: its outcome then reports a stop on request.
	destroySlack = 2 * time.Second
	// defaultGrace is the grace period of a VMI without terminationGracePeriodSeconds. Source: kubevirt.io/api core/v1,
	// DefaultGracePeriodSeconds.
	defaultGrace = 30 * time.Second
	// podGraceMargin is how much longer a launcher Pod's grace period is than its VMI's.
	// Source: kubevirt/kubevirt pkg/virt-controller/services/template.go
	podGraceMargin = 30 * time.Second
)

// shutdownRequests are this process's requests that the guest shuts down.
type shutdownRequests struct {
	// requested is when the last one was made, or zero.
	requested time.Time
}

// made reports whether there was one.
func (r *shutdownRequests) made() bool { return !r.requested.IsZero() }

// guestStopper stops a guest.
type guestStopper interface {
	phase.DomainReader
	snapshotfreeze.Guest
	// Shutdown requests the guest to power off and returns at once.
	Shutdown(ctx context.Context, name string) error
	// Destroy ends QEMU.
	Destroy(ctx context.Context, name string) error
	// KeepThaw thaws the guest's file systems at the time that the freeze has; nil cancels that.
	KeepThaw(domain string, freeze *hypervisor.Freeze)
}

// shutdown stops the guest of a VMI or Pod that is being deleted: it presses the power button repeatedly during the
// grace period and then destroys the domain.
func (r *Reconciler) shutdown(ctx context.Context, s *scope, guest guestStopper) error {
	since, ok := s.stopRequested()
	if !ok {
		return nil
	}
	if s.Incoming != nil {
		// The source node owns the guest until the migration transfers it.
		return &outcome.Wait{Reason: "the launcher Pod to end"}
	}
	if !s.Domain.Active() {
		return &outcome.Wait{Reason: "the launcher Pod to end"}
	}
	if s.Domain.Freeze() != nil {
		// A guest with frozen file systems cannot shut down.
		guest.KeepThaw(s.DomainName(), &hypervisor.Freeze{Thaw: since})
	}
	s.jobs.Thaw(guest)
	destroyAt := since.Add(s.grace() + destroySlack)
	if !s.Now.Before(destroyAt) {
		if err := guest.Destroy(ctx, s.DomainName()); err != nil {
			return phase.FromConnection(err)
		}
		return readDomainAndWait(ctx, s, guest)
	}
	next := s.cache.shutdown.requested.Add(shutdownInterval)
	if !s.Now.Before(next) {
		// A paused guest cannot shut down: it is destroyed after its grace period.
		if s.Domain.State == hypervisor.StateRunning {
			if err := guest.Shutdown(ctx, s.DomainName()); err != nil {
				return phase.FromConnection(err)
			}
		}
		s.cache.shutdown.requested = s.Now
		next = s.Now.Add(shutdownInterval)
	}
	if err := s.ReadDomain(ctx, guest); err != nil {
		return err
	}
	if destroyAt.Before(next) {
		next = destroyAt
	}
	return &outcome.Requeue{After: next.Sub(s.Now)}
}

func readDomainAndWait(ctx context.Context, s *scope, guest guestStopper) error {
	if err := s.ReadDomain(ctx, guest); err != nil {
		return err
	}
	return &outcome.Wait{Reason: "the launcher Pod to end"}
}

// stopRequested returns when the VMI or the Pod was deleted, whichever was first, and whether one was.
func (s *scope) stopRequested() (time.Time, bool) {
	var since time.Time
	if s.VMI != nil && s.VMI.DeletionTimestamp != nil {
		since = s.VMI.DeletionTimestamp.Time
	}
	if s.Pod.DeletionTimestamp != nil {
		// A Pod's deletionTimestamp is when its grace period ends; the request was sent that much earlier.
		requested := s.Pod.DeletionTimestamp.Time
		if grace := s.Pod.DeletionGracePeriodSeconds; grace != nil {
			requested = requested.Add(-time.Duration(*grace) * time.Second)
		}
		if since.IsZero() || requested.Before(since) {
			since = requested
		}
	}
	return since, !since.IsZero()
}

// grace returns how long the guest may take to shut down.
func (s *scope) grace() time.Duration {
	if vmi := s.KnownVMI(); vmi != nil {
		if seconds := vmi.Spec.TerminationGracePeriodSeconds; seconds != nil {
			return time.Duration(*seconds) * time.Second
		}
		return defaultGrace
	}
	if seconds := s.Pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return max(0, time.Duration(*seconds)*time.Second-podGraceMargin)
	}
	return defaultGrace
}

// orphanStopper stops the guest of a Pod that does not exist any more.
type orphanStopper interface {
	phase.DomainReader
	// Destroy ends QEMU.
	Destroy(ctx context.Context, name string) error
}

// cleanup releases what is kept for Pods of a VMI that have finished or do not exist any more. Everything else is in
// the Pod and removed with it. A guest that still runs in a Pod that does not exist is stopped.
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
	cache.devices.Stop()
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

// Recheck stops the guests whose Pods were deleted while the node was disconnected from the API server. Watches report
// these Pods too, but up to a minute later, when another guest of the VM may already run elsewhere.
func (r *Reconciler) Recheck(ctx context.Context) error {
	caches := r.podCaches(func(*podCache) bool { return true })
	if len(caches) == 0 {
		return nil
	}
	pods := &corev1.PodList{}
	err := r.APIReader.List(ctx, pods, client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue},
		client.MatchingFields{"spec.nodeName": r.Node})
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

// stopOrphan destroys the guest of a Pod that was deleted while it ran: by force, or because its node was disconnected
// and marked out-of-service. All other components assume that nothing of that Pod runs, so the VM may have another
// guest. The kubelet stops the Pod too, but only after its grace period. Pods of a lost node are marked as failed
// before they are deleted, which a kubelet never does while a guest runs.
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
	log.FromContext(ctx).Info("Destroying the guest of a launcher Pod that does not exist any more", "pod", cache.pod,
		"uid", uid)
	err = guest.Destroy(ctx, domainName(cache.key))
	if errors.Is(err, hypervisor.ErrNoDomain) || errors.Is(err, hypervisor.ErrUnreachable) {
		return nil
	}
	return err
}
