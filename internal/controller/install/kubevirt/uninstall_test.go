// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"os"
	"path/filepath"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// notAwaited are the namespaced kinds for which an uninstallation does not wait, with the reason.
var notAwaited = map[string]string{
	"KubeVirt":                        "it is what is uninstalled",
	"VirtualMachineInstanceMigration": "it ends with its guest",
	"VirtualMachineBackup":            "it ends with its guest",
	"VirtualMachineExport":            "no agent is needed to remove its exporter",
	"VirtualMachineInstancePreset":    "it runs nothing",
	"VirtualMachineInstancetype":      "it runs nothing",
	"VirtualMachinePreference":        "it runs nothing",
	"VirtualMachineSnapshot":          "it is a user's data and runs nothing",
	"VirtualMachineSnapshotContent":   "it is a user's data and runs nothing",
	"VirtualMachineBackupTracker":     "it is a user's data and runs nothing",
	"VirtualMachineRestore":           "it runs nothing: its VM is awaited",
	"VirtualMachineClone":             "it runs nothing: its VM is awaited",
}

// Each namespaced kind of the API that runs guests, or creates objects that do, is in awaited: it is counted, deleted,
// waited for and watched. The others have a reason.
func TestEveryWorkloadIsAwaited(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, poolv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	waited := map[schema.GroupKind]bool{}
	for _, a := range awaited {
		kind, err := apiutil.GVKForObject(a.kind, scheme)
		if err != nil {
			t.Fatal(err)
		}
		waited[kind.GroupKind()] = true
		if err := (&workloads{}).add(a.kind.DeepCopyObject()); err != nil {
			t.Errorf("%s is in awaited, and not in workloads.add: %v", kind.Kind, err)
		}
	}
	if (&workloads{}).add(&v1.KubeVirt{}) == nil {
		t.Error("KubeVirt counts as a workload")
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(raw, &crd); err != nil {
			t.Fatal(err)
		}
		kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
		if crd.Spec.Scope == apiextensionsv1.NamespaceScoped && waited[kind] == (notAwaited[kind.Kind] != "") {
			t.Errorf("%s: an uninstallation waits for it: %t. Add it to awaited and workloads.add in "+
				"internal/controller/install/kubevirt/uninstall.go, or its reason to notAwaited in uninstall_test.go: follow \"a new kind\" in docs/architecture.md", kind, waited[kind])
		}
	}
}
