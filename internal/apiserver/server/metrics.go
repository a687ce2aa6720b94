// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/vireo-project/vireo/internal/apiserver/stream"
	"github.com/vireo-project/vireo/internal/component/metrics"
)

// metricsHandler serves the metrics of streams and those of the API server library. virt-api is ready as long as it serves, until
// stopping is closed.
func metricsHandler(stopping <-chan struct{}) (http.Handler, error) {
	stops := metrics.Closed(stopping)
	return metrics.Handler(metrics.Options{
		Library: legacyregistry.DefaultGatherer, Collectors: stream.Collectors(func() bool { return !stops() }),
	})
}
