// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineclone"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinerestore"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfClones(t *testing.T) {
	Run(t, "internal/controller/storage/virtualmachineclone", Indexes{
		virtualmachineclone.ClaimIndex:  IndexOf(virtualmachineclone.RestoreOfClaim),
		virtualmachinerestore.LockIndex: IndexOf(virtualmachinerestore.LockOf),
	})
}
