// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"context"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var ctx = context.Background()

func TestSpecsOfMigrations(t *testing.T) {
	Run(t, "internal/controller/migration/virtualmachineinstancemigration", Indexes{
		virtualmachineinstance.AttachmentIndex: IndexOf(virtualmachineinstance.AttachmentOf),
	})
}
