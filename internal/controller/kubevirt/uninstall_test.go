// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Every kind that runs guests, or creates objects that do, is in awaited, and so both waited for and watched. The others have a reason.
func TestEveryWorkloadIsAwaited(t *testing.T) {
	others := map[string]string{
		"KubeVirt":                        "it is what is uninstalled",
		"VirtualMachineInstanceMigration": "it ends with its guest",
		"VirtualMachineInstancePreset":    "it runs nothing",
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, poolv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	known := map[reflect.Type]bool{}
	for _, a := range awaited {
		known[reflect.TypeOf(a.kind)] = true
		list, err := scheme.New(v1.GroupVersion.WithKind("KubeVirt"))
		if err != nil || (&workloads{}).add(list) == nil {
			t.Errorf("KubeVirt counts as a workload, %v", err)
		}
		object := a.kind.DeepCopyObject()
		if err := (&workloads{}).add(object); err != nil {
			t.Error(err)
		}
	}
	for _, group := range []runtime.Object{&v1.VirtualMachine{}, &poolv1.VirtualMachinePool{}} {
		kinds, _, err := scheme.ObjectKinds(group)
		if err != nil {
			t.Fatal(err)
		}
		for kind := range scheme.KnownTypes(kinds[0].GroupVersion()) {
			object, err := scheme.New(kinds[0].GroupVersion().WithKind(kind))
			if err != nil {
				t.Fatal(err)
			}
			if _, isOurs := scheme.KnownTypes(kinds[0].GroupVersion())[kind+"List"]; isOurs && !known[reflect.TypeOf(object)] && others[kind] == "" {
				t.Errorf("an uninstallation neither waits for %s objects nor has a reason not to", kind)
			}
		}
	}
}
