// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/internal/component/otlp"
	"github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/controller/tracing"
)

// setupTracing adds the export of traces, if the environment configures it. Invalid settings only turn it off.
func setupTracing(ctx context.Context, mgr ctrl.Manager, log logr.Logger) error {
	exporter, err := otlp.New(ctx, componentName, version.Get().GitVersion, log.WithName("tracing"))
	if err != nil {
		log.Error(err, "Traces are off")
		return nil
	}
	if exporter == nil {
		return nil
	}
	return mgr.Add(&tracing.Watcher{Cache: mgr.GetCache(), Exporter: exporter, Clock: clock.RealClock{}})
}
