// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	"context"
	"testing"

	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfKubeVirt(t *testing.T) {
	Run(t, "internal/controller/install/kubevirt")
}
