// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// PodClaimIndex finds the launcher Pods that have not ended by the claims that they use. The cache has no other Pods.
const PodClaimIndex = "spec.volumes.persistentVolumeClaim.claimName"

// ClaimsOfPod returns the values of PodClaimIndex.
func ClaimsOfPod(pod *corev1.Pod) []string {
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

// podLists contains the most recent list of Pods of each namespace. Many snapshots may wait for the same Pod. So while a list is not older
// than lockRetry, it is used to find that a Pod uses a claim, but never to find that no Pod does.
type podLists struct {
	mu     sync.Mutex
	recent map[string]podList
}

// podList has the names of the Pods that use a claim.
type podList struct {
	at      time.Time
	byClaim map[string][]string
}

// get returns the recent list of a namespace, or an empty one.
func (l *podLists) get(namespace string, now time.Time) podList {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recent[namespace].ifRecent(now)
}

// ifRecent returns the list, or an empty one if the list is too old.
func (l podList) ifRecent(now time.Time) podList {
	if age := now.Sub(l.at); age < 0 || age >= lockRetry {
		return podList{}
	}
	return l
}

// keep stores the list of a namespace, and removes those that are too old.
func (l *podLists) keep(namespace string, list podList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := map[string]podList{namespace: list}
	for other, recent := range l.recent {
		if other != namespace && recent.ifRecent(list.at).byClaim != nil {
			kept[other] = recent
		}
	}
	l.recent = kept
}

// count returns how many Pods use one of the claims.
func (l podList) count(claims map[string]bool) int {
	pods := map[string]bool{}
	for claim := range claims {
		for _, pod := range l.byClaim[claim] {
			pods[pod] = true
		}
	}
	return len(pods)
}

// countPods counts the unfinished Pods that use a claim of the VM. It reads other Pods than launcher Pods, which are not in the cache, only
// if no launcher Pod uses a claim.
func (s *scope) countPods(ctx context.Context) (int, error) {
	claims := map[string]bool{}
	for i := range s.observed.Source.Volumes {
		if name := s.observed.Source.Volumes[i].ClaimName; name != "" {
			claims[name] = true
		}
	}
	launchers := podList{byClaim: map[string][]string{}}
	for claim := range claims {
		list := &corev1.PodList{}
		if err := s.client.List(ctx, list, client.InNamespace(s.snapshot.Namespace), client.MatchingFields{PodClaimIndex: claim}); err != nil {
			return 0, fmt.Errorf("list the launcher Pods that use PersistentVolumeClaim %s/%s: %w", s.snapshot.Namespace, claim, err)
		}
		launchers.add(list.Items)
	}
	if count := launchers.count(claims); count > 0 || len(claims) == 0 {
		return count, nil
	}
	if count := s.pods.get(s.snapshot.Namespace, s.now).count(claims); count > 0 {
		return count, nil
	}
	pods := &corev1.PodList{}
	notTerminal := client.MatchingFieldsSelector{Selector: podstate.NotTerminal}
	if err := s.apiReader.List(ctx, pods, client.InNamespace(s.snapshot.Namespace), notTerminal); err != nil {
		return 0, fmt.Errorf("list the Pods of namespace %s: %w", s.snapshot.Namespace, err)
	}
	all := podList{at: s.now, byClaim: map[string][]string{}}
	all.add(pods.Items)
	s.pods.keep(s.snapshot.Namespace, all)
	return all.count(claims), nil
}

func (l podList) add(pods []corev1.Pod) {
	for i := range pods {
		for _, claim := range ClaimsOfPod(&pods[i]) {
			l.byClaim[claim] = append(l.byClaim[claim], pods[i].Name)
		}
	}
}
