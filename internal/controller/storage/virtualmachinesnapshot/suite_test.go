// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinesnapshot"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfSnapshots(t *testing.T) {
	Run(t, "internal/controller/storage/virtualmachinesnapshot", Indexes{
		virtualmachinesnapshot.LockIndex: IndexOf(virtualmachinesnapshot.LockOf),
	})
}
