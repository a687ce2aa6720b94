// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinerestore"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfRestores(t *testing.T) {
	Run(t, "internal/controller/storage/virtualmachinerestore", Indexes{
		virtualmachinerestore.LockIndex: IndexOf(virtualmachinerestore.LockOf),
	})
}
