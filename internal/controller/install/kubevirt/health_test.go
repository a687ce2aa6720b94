// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"errors"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/test/health"
)

// A KubeVirt object counts as current only when its generation is rolled out.
func TestHealth(t *testing.T) {
	waiting := manifests.Rollout{Message: "virt-handler is ready on 1 of 2 nodes"}
	for name, tc := range map[string]struct {
		observed string
		change   func(*Scope)
		want     string
	}{
		"deploying":       {"", func(s *Scope) { s.Rollout = waiting }, health.InProgress},
		"deployed":        {"", nil, health.Current},
		"updating":        {"old", func(s *Scope) { s.Rollout = waiting }, health.InProgress},
		"a node joins":    {"new", func(s *Scope) { s.Rollout = waiting }, health.InProgress},
		"deleting":        {"new", deleting(Uninstall{Waiting: "DaemonSet"}), health.Terminating},
		"deletion failed": {"new", deleting(Uninstall{Err: errors.New("no")}), health.Terminating},
		// kstatus compares the generations first, and these are not rolled out.
		"an update stops":       {"old", func(s *Scope) { s.Rollout, s.Crash = waiting, "Pod x" }, health.InProgress},
		"an installation fails": {"old", func(s *Scope) { s.InstallErr = errors.New("no") }, health.InProgress},
		// A generation that was rolled out, and then fails.
		"certificates are not renewed": {"new", func(s *Scope) { s.Overdue = []string{"Secret x"} }, health.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			s := scope(tc.observed, tc.change)
			Status(s, now)
			if got := health.Kstatus(t, s.KubeVirt); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			s.KubeVirt.Generation++
			if got := health.Kstatus(t, s.KubeVirt); s.KubeVirt.DeletionTimestamp == nil && got != health.InProgress {
				t.Errorf("before its next generation is reconciled: got %s", got)
			}
		})
	}
}
