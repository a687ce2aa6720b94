// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package speclabels has the labels of specs by which hack/third.sh chooses.
package speclabels

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/onsi/ginkgo/v2"
)

// Extended labels specs that .ci/run runs for only one commit in three, selected by the commit's hash, and for each
// commit that changes what the spec's file is named after: pool_test.go for pools. It is for variants of what another
// spec covers, and for specs that take a minute or more. third is 1, 2 or 3. Each third should take about the same
// time.
func Extended(third int) ginkgo.Labels {
	_, file, _, _ := runtime.Caller(1)
	return ginkgo.Label("extended", fmt.Sprintf("extended-%d", third),
		"of-"+strings.TrimSuffix(filepath.Base(file), "_test.go"))
}
