// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/controller/observe/tracing"
)

// additions is a manager of which only Add works.
type additions struct {
	ctrl.Manager
	added []manager.Runnable
}

func (a *additions) GetCache() cache.Cache { return nil }

func (a *additions) Add(r manager.Runnable) error {
	a.added = append(a.added, r)
	return nil
}

// Traces are off by default, and invalid settings do not keep virt-controller from starting.
func TestSetupTracing(t *testing.T) {
	for name, tc := range map[string]struct {
		environment map[string]string
		want        int
	}{
		"no endpoint":     {},
		"endpoint":        {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, 1},
		"invalid setting": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range tc.environment {
				t.Setenv(key, value)
			}
			mgr := &additions{}
			if err := setupTracing(t.Context(), mgr, logr.Discard()); err != nil {
				t.Fatal(err)
			}
			if len(mgr.added) != tc.want {
				t.Fatalf("%d added", len(mgr.added))
			}
			for _, r := range mgr.added {
				watcher, ok := r.(*tracing.Watcher)
				if !ok {
					t.Fatalf("%T added", r)
				}
				if err := watcher.Exporter.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
