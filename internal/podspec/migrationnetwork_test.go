// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestMigrationNetworkIsAddedToTheUsersNetworks(t *testing.T) {
	for name, tc := range map[string]struct {
		had, want string
		on        bool
	}{
		"none":       {"", `[{"name":"wire","namespace":"kubevirt","interface":"migration0"}]`, true},
		"short form": {"blue, other/red@net7", "blue, other/red@net7,kubevirt/wire@migration0", true},
		"JSON, with what we do not know": {
			`[{"name":"blue","ips":["192.0.2.9/24"]}]`,
			`[{"name":"blue","ips":["192.0.2.9/24"]},{"name":"wire","namespace":"kubevirt","interface":"migration0"}]`, true,
		},
		"on that interface already":         {"mine@migration0", "mine@migration0", true},
		"on that interface already, JSON":   {`[{"name":"mine","interface":"migration0"}]`, `[{"name":"mine","interface":"migration0"}]`, true},
		"what nobody can read stays broken": {`[{"name":`, `[{"name":`, false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{}
			annotations := map[string]string{}
			if tc.had != "" {
				annotations[networksAnnotation] = tc.had
			}
			if err := annotateNetworks(annotations, vmi, types.NamespacedName{Namespace: "kubevirt", Name: "wire"}); err != nil {
				t.Fatal(err)
			}
			if got := annotations[networksAnnotation]; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			pod := &corev1.Pod{}
			pod.Annotations = annotations
			if got := OnMigrationNetwork(pod); got != tc.on {
				t.Errorf("on the network: %v", got)
			}
			before := map[string]string{networksAnnotation: tc.had}
			if err := annotateNetworks(before, vmi, types.NamespacedName{}); err != nil || before[networksAnnotation] != tc.had {
				t.Errorf("without a network for migrations: %v, %v", before, err)
			}
		})
	}
}
