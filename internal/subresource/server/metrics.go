// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"sync"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/vireo-project/vireo/internal/subresource/stream"
)

// registerMetrics adds ours to those that the chain serves on /metrics. A process has one registry.
var registerMetrics = sync.OnceFunc(func() { legacyregistry.RawMustRegister(stream.Collectors()...) })
