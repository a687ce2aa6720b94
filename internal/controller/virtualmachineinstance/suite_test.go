// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfVirtualMachineInstances(t *testing.T) {
	Run(t, "internal/controller/virtualmachineinstance", Indexes{
		virtualmachineinstance.AttachmentIndex: IndexOf(virtualmachineinstance.AttachmentOf),
	})
}
