// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// RBAC cannot limit an agent to objects of its node; the cache's selectors do.
func TestCacheIsLimitedToTheNode(t *testing.T) {
	options := CacheOptions(&Options{Node: "blue", Namespace: "kubevirt"})
	found := 0
	for object, by := range options.ByObject {
		switch object.(type) {
		case *v1.VirtualMachineInstance:
			found++
			if got := by.Field.String(); got != "status.nodeName=blue" {
				t.Errorf("VMIs: %q", got)
			}
		case *corev1.Pod:
			found++
			if got := by.Field.String(); got != "spec.nodeName=blue,status.phase!=Succeeded,status.phase!=Failed" {
				t.Errorf("Pods: %q", got)
			}
			if got := by.Label.String(); got != "kubevirt.io in (hotplug-disk,virt-launcher)" {
				t.Errorf("Pods: %q", got)
			}
		case *v1.KubeVirt:
			found++
			if _, here := by.Namespaces["kubevirt"]; !here || len(by.Namespaces) != 1 {
				t.Errorf("KubeVirt objects of %d namespaces", len(by.Namespaces))
			}
		}
	}
	if found != 3 || len(options.ByObject) != 3 {
		t.Errorf("%d kinds have a selector, and %d of the expected: add one for each new kind", len(options.ByObject), found)
	}
}
