// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// SECURITY.md gives the reason for each capability, host path and resource. One that is not there has none.
func TestSecurityNamesEveryRight(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[name] = body
	}
	named := func(process, what string) {
		t.Helper()
		if !strings.Contains(sections[process], "`"+what+"`") {
			t.Errorf("SECURITY.md gives no reason for %s of %s", what, process)
		}
	}
	var agent appsv1.DaemonSet
	read(t, &agent, "internal", "operator", "manifests", "virt-handler.yaml")
	pods := map[string]*corev1.PodSpec{"virt-handler": &agent.Spec.Template.Spec}
	var api appsv1.Deployment
	read(t, &api, "internal", "operator", "manifests", "virt-api.yaml")
	pods["virt-api"] = &api.Spec.Template.Spec
	seen := 0
	for process, pod := range pods {
		for _, volume := range pod.Volumes {
			if volume.HostPath != nil {
				named(process, volume.HostPath.Path)
				seen++
			}
		}
		for i := range pod.Containers {
			if c := pod.Containers[i].SecurityContext.Capabilities; c != nil {
				for _, capability := range c.Add {
					named(process, string(capability))
					seen++
				}
			}
		}
		for namespace, shared := range map[string]bool{"hostPID": pod.HostPID, "hostNetwork": pod.HostNetwork, "hostIPC": pod.HostIPC} {
			if shared {
				named(process, namespace)
			}
		}
	}
	if seen == 0 {
		t.Error("the manifests have no capability and no host path")
	}
	for process, file := range map[string]string{"virt-handler": "virt-handler.yaml", "virt-api": "virt-api.yaml", "virt-controller": "role.yaml"} {
		for _, resource := range resources(t, file) {
			// A subresource is named with its resource, a kind in words: what counts is that it is there.
			if !strings.Contains(strings.ToLower(sections[process]), wordOf(resource)) {
				t.Errorf("SECURITY.md gives no reason for the right of %s to %s", process, resource)
			}
		}
	}
}

// resources are those that the roles of a file are about.
func resources(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "config", "rbac", file))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, document := range strings.Split(string(data), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, rule := range role.Rules {
			out = append(out, rule.Resources...)
		}
	}
	if len(out) == 0 {
		t.Errorf("%s has no rules", file)
	}
	return out
}

// wordOf is how SECURITY.md calls a resource.
func wordOf(resource string) string {
	kind, _, _ := strings.Cut(resource, "/")
	for name, word := range map[string]string{
		"virtualmachines": "vms", "virtualmachineinstances": "vmis", "virtualmachineinstancemigrations": "migrations",
		"virtualmachineinstancereplicasets": "replica sets", "certificatesigningrequests": "certificate requests", "signers": "signers",
		"mutatingwebhookconfigurations": "webhook configurations", "validatingwebhookconfigurations": "webhook configurations",
		"leases": "lease", "kubevirts": "kubevirt", "configmaps": "configmap", "events": "events",
	} {
		if kind == name {
			return word
		}
	}
	return kind
}
