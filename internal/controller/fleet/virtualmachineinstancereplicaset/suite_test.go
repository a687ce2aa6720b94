// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset_test

import (
	"context"
	"testing"

	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfReplicaSets(t *testing.T) {
	Run(t, "internal/controller/fleet/virtualmachineinstancereplicaset")
}
