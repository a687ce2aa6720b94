// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

type fixedConfig struct{ clusterconfig.Config }

func (f fixedConfig) Current() clusterconfig.Config { return f.Config }

// KubeVirt admits these VMs without a warning, and refuses their VMIs when they start.
func TestErrorsOfInstance(t *testing.T) {
	readOnly := withDisk(v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{ReadOnly: true}}}, containerDisk())
	for _, tc := range []struct {
		name   string
		option specOption
		change func(*v1.VirtualMachine)
		want   string
	}{
		{"sound", withDisk(v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{}}}, containerDisk()), nil, ""},
		{"a read-only disk becomes a SATA disk", readOnly, nil,
			"spec.template.spec.domain.devices.disks[0].disk.bus keeps the VM from starting: sata hard-disks do not support read-only"},
		{"a preference may say the bus", readOnly, func(vm *v1.VirtualMachine) {
			vm.Spec.Preference = &v1.PreferenceMatcher{Name: "linux"}
		}, "spec.preference"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := clusterconfig.Default()
			config.DefaultArchitecture = clusterconfig.ArchAMD64
			vm := newVM("vm", tc.option)
			vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
			if tc.change != nil {
				tc.change(vm)
			}
			before := vm.DeepCopy()
			warnings, err := (&vmValidator{config: fixedConfig{config}}).ValidateCreate(t.Context(), vm)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(warnings, "\n")
			if len(warnings) > 1 || tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
				t.Errorf("warnings %q, want one that begins with %q", warnings, tc.want)
			}
			if diff := cmp.Diff(before, vm); diff != "" {
				t.Errorf("the user's VM was changed: %s", diff)
			}
		})
	}
}
