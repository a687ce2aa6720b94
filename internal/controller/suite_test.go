// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/virtualmachineclone"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/controller/virtualmachinerestore"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfControllers(t *testing.T) {
	Run(t, "internal/controller", Indexes{
		virtualmachineinstance.AttachmentIndex: IndexOf(virtualmachineinstance.AttachmentOf),
		virtualmachineclone.ClaimIndex:         IndexOf(virtualmachineclone.RestoreOfClaim),
		virtualmachinerestore.LockIndex:        IndexOf(virtualmachinerestore.LockOf),
	})
}
