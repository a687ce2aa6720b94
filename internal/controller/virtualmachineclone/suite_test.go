// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/virtualmachineclone"
	"github.com/vireo-project/vireo/internal/controller/virtualmachinerestore"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfClones(t *testing.T) {
	Run(t, "internal/controller/virtualmachineclone", Indexes{
		virtualmachineclone.ClaimIndex:  IndexOf(virtualmachineclone.RestoreOfClaim),
		virtualmachinerestore.LockIndex: IndexOf(virtualmachinerestore.LockOf),
	})
}
