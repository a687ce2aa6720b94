// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// UnfinishedMigrations selects the migrations that have not ended, on the API server.
var UnfinishedMigrations = client.MatchingFieldsSelector{Selector: unfinished}

var unfinished = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(v1.MigrationSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(v1.MigrationFailed)),
)

// EachMigration calls do for each migration of a VMI that has not ended, as they are on the API server.
func EachMigration(
	ctx context.Context, live client.Reader, vmi client.ObjectKey, do func(*v1.VirtualMachineInstanceMigration),
) error {
	selected := client.MatchingFieldsSelector{
		Selector: fields.AndSelectors(fields.OneTermEqualSelector(VMIIndex, vmi.Name), unfinished),
	}
	err := EachPage(ctx, live, &v1.VirtualMachineInstanceMigrationList{},
		func(page *v1.VirtualMachineInstanceMigrationList) {
			for i := range page.Items {
				do(&page.Items[i])
			}
		}, client.InNamespace(vmi.Namespace), selected)
	if err != nil {
		return fmt.Errorf("list the migrations of VirtualMachineInstance %s: %w", vmi, err)
	}
	return nil
}
