// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinebackup"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfBackups(t *testing.T) {
	Run(t, "internal/controller/storage/virtualmachinebackup", Indexes{
		virtualmachinebackup.GuestIndex: IndexOf(plan.UIDs),
		virtualmachinebackup.UIDIndex:   IndexOf(virtualmachinebackup.UnfinishedUID),
	})
}
