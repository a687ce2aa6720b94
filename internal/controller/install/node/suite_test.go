// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node_test

import (
	"context"
	"testing"

	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfNodes(t *testing.T) {
	Run(t, "internal/controller/install/node")
}
