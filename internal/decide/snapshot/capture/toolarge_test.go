// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"strings"
	"testing"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/test/builder"
)

func TestContentsOfUsersAreLimited(t *testing.T) {
	vm := builder.MakeVM("vm").Obj()
	of := func(annotation int) *v1beta1.VirtualMachineSnapshotContent {
		vm.Annotations = map[string]string{"note": strings.Repeat("x", annotation)}
		content, _ := Content(&v1beta1.VirtualMachineSnapshot{}, Stored{VM: vm})
		return content
	}
	if problem := TooLarge(of(maxContent * 3 / 4)); problem != "" {
		t.Error(problem)
	}
	if problem := TooLarge(of(maxContent)); !strings.Contains(problem, "and at most 1048576 are possible") {
		t.Errorf("got %q", problem)
	}
	many := of(0)
	many.Spec.VolumeBackups = make([]v1beta1.VolumeBackup, maxVolumes+1)
	if problem := TooLarge(many); !strings.Contains(problem, "has 258 volumes") {
		t.Errorf("got %q", problem)
	}
}
