// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"sync"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/vireo-project/vireo/internal/apiserver/stream"
)

// registerMetrics adds the metrics of streams to the process's registry, which the API server library serves on /metrics.
var registerMetrics = sync.OnceFunc(func() { legacyregistry.RawMustRegister(stream.Collectors()...) })
