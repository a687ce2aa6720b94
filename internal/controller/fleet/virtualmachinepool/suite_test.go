// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool_test

import (
	"context"
	"testing"

	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfPools(t *testing.T) {
	Run(t, "internal/controller/fleet/virtualmachinepool")
}
