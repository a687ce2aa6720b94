// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot

import (
	"context"

	"github.com/vireo-project/vireo/internal/controller/claimusers"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// countPods counts the unfinished Pods that use a claim of the VM. It reads other Pods than launcher Pods, which are not in the cache, only
// if no launcher Pod uses a claim. Of these it counts one for each claim, and may miss some if it finds one.
func (s *scope) countPods(ctx context.Context) (int, error) {
	var claims []string
	for i := range s.observed.Source.Volumes {
		if name := s.observed.Source.Volumes[i].ClaimName; name != "" {
			claims = append(claims, name)
		}
	}
	pods := map[string]bool{}
	for _, claim := range claims {
		launchers, err := claimusers.Launchers(ctx, s.client, s.snapshot.Namespace, claim)
		if err != nil {
			return 0, err
		}
		for i := range launchers {
			pods[launchers[i].Name] = true
		}
	}
	if len(pods) > 0 || len(claims) == 0 {
		return len(pods), nil
	}
	scanner := claimusers.Scanner{Cached: s.client, API: s.apiReader, Selector: podstate.NotTerminal, Recent: s.pods}
	used, err := scanner.Used(ctx, s.snapshot.Namespace, claims, s.now, claimusers.MaxProofAge)
	for _, pod := range used {
		pods[pod] = true
	}
	return len(pods), err
}
