// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestUnimplementedInAnnotations(t *testing.T) {
	found := UnimplementedInAnnotations(field.NewPath("metadata"), map[string]string{
		"team": "blue", v1.IgnitionAnnotation: "{}", HookSidecarAnnotation: "",
	})
	expectPrefixes(t, Warnings(found), []string{"metadata.annotations[kubevirt.io/ignitiondata] keeps the VM from starting: "})
}

// Annotations that would change the guest are refused. Others only warn.
func TestAnnotationsOfKubeVirt(t *testing.T) {
	warningsFor := func(annotations map[string]string) []string {
		return Warnings(UnimplementedInAnnotations(field.NewPath("metadata"), annotations))
	}
	expectPrefixes(t, warningsFor(map[string]string{
		v1.CreateMigrationTarget: "false", v1.MemfdMemoryBackend: "true", v1.PauseGuestAgentProbesAnnotation: "true",
		v1.PlacePCIDevicesOnRootComplex: "true", v1.DisablePCIHole64: "true", v1.FreePageReportingDisabledAnnotation: "true",
	}), nil)
	expectPrefixes(t, warningsFor(map[string]string{v1.CreateMigrationTarget: "true"}),
		[]string{"metadata.annotations[kubevirt.io/create-migration-target] keeps the VM from starting: "})
	for key, value := range map[string]string{
		v1.MemfdMemoryBackend: "false", v1.PciTopologyVersionAnnotation: v1.PciTopologyVersionV3,
		v1.PciInterfaceSlotCountAnnotation:    "4",
		v1.KeepLauncherAfterFailureAnnotation: "true", v1.CustomLibvirtLogFiltersAnnotation: "1:*",
	} {
		expectPrefixes(t, warningsFor(map[string]string{key: value}), []string{"metadata.annotations[" + key + "] "})
		if refused := Refusals(UnimplementedInAnnotations(field.NewPath("metadata"), map[string]string{key: value})); len(refused) > 0 {
			t.Errorf("%v", refused)
		}
	}
}
