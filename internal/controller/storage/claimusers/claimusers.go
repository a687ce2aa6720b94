// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package claimusers finds the Pods that use claims. Launcher Pods are in the manager's cache. All others are read from
// the API server, and tenants decide how many there are and how large. So they are read in small pages, in one scan of
// a namespace at a time, and what was found is used again for a moment.
package claimusers

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/outcome"
)

const (
	// page is how many Pods are read at a time, because a Pod may be larger than a megabyte.
	page = 50
	// maxPages is how many pages the process reads at a time.
	maxPages = 2
	// ResultTTL is how long the result of a scan is kept.
	ResultTTL = 5 * time.Second
	// MaxProofAge is the maximum age of a scan on which a caller may act. Another Pod may start just after every scan
	// anyway. Callers of one namespace share a scan.
	MaxProofAge = time.Second
)

// reading limits the pages that the process reads at a time.
var reading = make(chan struct{}, maxPages)

// Index finds the launcher Pods that have not ended by the claims that they use. The manager's cache has no other Pods.
const Index = "spec.volumes.persistentVolumeClaim.claimName"

// ClaimsOf returns the values of Index.
func ClaimsOf(pod *corev1.Pod) []string {
	if podstate.Terminal(pod) {
		return nil
	}
	var claims []string
	for i := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[i].PersistentVolumeClaim; source != nil {
			claims = append(claims, source.ClaimName)
		}
	}
	return claims
}

// Launchers returns the launcher Pods in a cache that use a claim. They belong to the cache and must not be changed.
func Launchers(ctx context.Context, cached client.Reader, namespace, claim string) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := cached.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{Index: claim},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the launcher Pods that use PersistentVolumeClaim %s/%s: %w", namespace, claim, err)
	}
	return list.Items, nil
}

// ErrBusy is the outcome of a reconciliation that waits for another one of its namespace, which scans the Pods. It
// takes no worker meanwhile.
var ErrBusy error = &outcome.Requeue{After: busyRetry}

// busyRetry is the delay after ErrBusy.
const busyRetry = 500 * time.Millisecond

// Scanner scans the Pods of a namespace.
type Scanner struct {
	// Cached reads claims, and API reads Pods.
	Cached, API client.Reader
	// Selector selects the Pods that count.
	Selector fields.Selector
	// Ignore excludes Pods that Selector selects; nil excludes none.
	Ignore func(*corev1.Pod) bool
	// Recent are the recent results of scanners with the same Selector and Ignore.
	Recent *Recent
}

// Used returns which of the claims are used, each with the name of a Pod. It stops at the first page with such a Pod,
// so others may be missing. It uses a result that is younger than ResultTTL, or than maxAge if it is to prove that no
// Pod uses a claim. While another scan of the namespace runs, it returns ErrBusy, so that no namespace takes more than
// one worker.
func (s Scanner) Used(
	ctx context.Context, namespace string, claims []string, now time.Time, maxAge time.Duration,
) (map[string]string, error) {
	if used, found := s.Recent.result(namespace, now).lookUp(claims, now, maxAge); found {
		return used, nil
	}
	if !s.Recent.begin(namespace) {
		return nil, fmt.Errorf("the Pods of namespace %s are being read: %w", namespace, ErrBusy)
	}
	defer s.Recent.end(namespace)
	result, err := s.scan(ctx, namespace, claims)
	if err != nil {
		return nil, err
	}
	result.began = now
	s.Recent.keep(namespace, result)
	return result.used(claims), nil
}

// scan reads the Pods of a namespace until one uses one of the claims. It also notes which of the other claims of the
// namespace are used. Pods may name any number of claims that do not exist, which are not noted.
func (s Scanner) scan(ctx context.Context, namespace string, claims []string) (result, error) {
	existing := &corev1.PersistentVolumeClaimList{}
	if err := s.Cached.List(ctx, existing, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return result{}, fmt.Errorf("list PersistentVolumeClaims of namespace %s: %w", namespace, err)
	}
	out := result{users: make(map[string]string, len(existing.Items)+len(claims))}
	for i := range existing.Items {
		out.users[existing.Items[i].Name] = ""
	}
	for _, name := range claims {
		out.users[name] = ""
	}
	for next := ""; ; {
		var err error
		if next, err = s.readPage(ctx, namespace, next, out.users); err != nil {
			return result{}, fmt.Errorf("list the Pods of namespace %s: %w", namespace, err)
		}
		if out.complete = next == ""; out.complete || len(out.used(claims)) > 0 {
			return out, nil
		}
	}
}

// readPage notes which claims are used by the Pods of a page, and returns where the next page begins, or "".
func (s Scanner) readPage(
	ctx context.Context, namespace, from string, users map[string]string,
) (next string, err error) {
	select {
	case reading <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { <-reading }()
	list := &corev1.PodList{}
	selected := client.MatchingFieldsSelector{Selector: s.Selector}
	if err := s.API.List(ctx, list, client.InNamespace(namespace), selected, client.Limit(page),
		client.Continue(from)); err != nil {
		return "", err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if s.Ignore != nil && s.Ignore(pod) {
			continue
		}
		for _, claim := range ClaimsOf(pod) {
			if user, known := users[claim]; known && user == "" {
				users[claim] = pod.Name
			}
		}
	}
	return list.Continue, nil
}

// result is what a scan has found.
type result struct {
	// began is when the scan began.
	began time.Time
	// users are the claims that were looked for, each with the name of a Pod that uses it, or "".
	users map[string]string
	// complete reports whether all Pods were read, so that a claim without a Pod is not used.
	complete bool
}

// used returns which of the claims are used, each with the name of a Pod.
func (r result) used(claims []string) map[string]string {
	out := map[string]string{}
	for _, claim := range claims {
		if user := r.users[claim]; user != "" {
			out[claim] = user
		}
	}
	return out
}

// lookUp returns which of the claims are used, and whether the result is recent and complete enough for that.
func (r result) lookUp(claims []string, now time.Time, maxAge time.Duration) (used map[string]string, found bool) {
	if used = r.used(claims); len(used) > 0 {
		return used, true
	}
	if !r.complete || !r.isYounger(maxAge, now) {
		return nil, false
	}
	for _, claim := range claims {
		if _, known := r.users[claim]; !known {
			return nil, false
		}
	}
	return used, true
}

// isYounger reports whether the scan began less than an age ago. Another worker's may have begun a little later than
// now. After the clock was put back, none is young.
func (r result) isYounger(age time.Duration, now time.Time) bool { return now.Sub(r.began).Abs() < age }

// Recent are the results of recent scans by namespace. Its zero value is ready to use.
type Recent struct {
	mu      sync.Mutex
	results map[string]result
	running map[string]bool
}

// result returns the recent result of a namespace, or an empty one.
func (r *Recent) result(namespace string, now time.Time) result {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.results[namespace]; found.isYounger(ResultTTL, now) {
		return found
	}
	return result{}
}

// begin reports whether no other scan of the namespace runs. If so, the caller calls end after its scan.
func (r *Recent) begin(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[namespace] {
		return false
	}
	if r.running == nil {
		r.running = map[string]bool{}
	}
	r.running[namespace] = true
	return true
}

func (r *Recent) end(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, namespace)
}

// keep stores the result of a namespace, and removes those that are too old.
func (r *Recent) keep(namespace string, latest result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := map[string]result{namespace: latest}
	for other, found := range r.results {
		if other != namespace && found.isYounger(ResultTTL, latest.began) {
			kept[other] = found
		}
	}
	r.results = kept
}
