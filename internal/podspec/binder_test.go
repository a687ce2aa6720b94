// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"testing"

	"github.com/vireo-project/vireo/internal/podspec"
)

// The binder Pod has the launcher Pod's scheduling constraints and claims, and nothing else of it.
func TestBuildBinder(t *testing.T) {
	cfg := config()
	cfg.Claims = map[string]podspec.Claim{"block": {Block: true}}
	vmi := makeVMI().Label("app", "db").PVC("root", "root-claim").PVC("block", "block-claim").Masquerade().
		ContainerDisk("tools", "registry.example/tools:1").CloudInitSecret("init", "secret", "").Obj()
	pod, err := podspec.BuildBinder(vmi, cfg)
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "binder", pod)
	if pod.Name == podspec.PodName(vmi) {
		t.Errorf("it has the launcher Pod's name %s", pod.Name)
	}
}
