// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// securitySections returns the section of SECURITY.md for each process.
func securitySections(t *testing.T) map[string]string {
	t.Helper()
	sections := map[string]string{}
	for _, section := range strings.Split(text(t, "SECURITY.md"), "\n### ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[name] = body
	}
	return sections
}

// SECURITY.md gives the reason for each capability and host path.
func TestSecurityNamesWhatPodsHave(t *testing.T) {
	sections := securitySections(t)
	named := func(process, what string) {
		t.Helper()
		if !strings.Contains(sections[process], "`"+what+"`") {
			t.Errorf("SECURITY.md gives no reason for %s of %s", what, process)
		}
	}
	var agent appsv1.DaemonSet
	read(t, &agent, "internal", "controller", "kubevirt", "operator", "manifests", "virt-handler.yaml")
	pods := map[string]*corev1.PodSpec{"virt-handler": &agent.Spec.Template.Spec}
	var api appsv1.Deployment
	read(t, &api, "internal", "controller", "kubevirt", "operator", "manifests", "virt-api.yaml")
	pods["virt-api"] = &api.Spec.Template.Spec
	var proxy appsv1.Deployment
	read(t, &proxy, "internal", "controller", "kubevirt", "operator", "manifests", "virt-exportproxy.yaml")
	pods["virt-exportproxy"] = &proxy.Spec.Template.Spec
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
}

// SECURITY.md gives the reason for each verb on a resource, in a row that names both.
func TestSecurityNamesEveryRight(t *testing.T) {
	sections := securitySections(t)
	for process, file := range map[string]string{
		"virt-handler": "virt-handler.yaml", "virt-api": "virt-api.yaml", "virt-exportproxy": "virt-exportproxy.yaml", "virt-controller": "role.yaml",
	} {
		rows := firstColumns(sections[process])
		for _, rule := range rules(t, file) {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					word := regexp.MustCompile(`\b` + verb + `\b`)
					if !slices.ContainsFunc(rows, func(row string) bool { return strings.Contains(row, wordOf(resource)) && word.MatchString(row) }) {
						t.Errorf("SECURITY.md gives no reason for the right of %s to %s %s", process, verb, resource)
					}
				}
			}
		}
	}
}

// firstColumns returns the first columns of the tables with two columns in a text, in lower case.
func firstColumns(text string) (rows []string) {
	for _, line := range strings.Split(text, "\n") {
		if columns := strings.Split(line, "|"); len(columns) == 4 {
			rows = append(rows, strings.ToLower(columns[1]))
		}
	}
	return rows
}

// rules returns the rules of the roles in a file.
func rules(t *testing.T, file string) []rbacv1.PolicyRule {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "config", "rbac", file))
	if err != nil {
		t.Fatal(err)
	}
	var out []rbacv1.PolicyRule
	for _, document := range strings.Split(string(data), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, role.Rules...)
	}
	if len(out) == 0 {
		t.Errorf("%s has no rules", file)
	}
	return out
}

// wordOf returns the name of a resource in SECURITY.md. A subresource has the name of its resource.
func wordOf(resource string) string {
	kind, _, _ := strings.Cut(resource, "/")
	word := map[string]string{
		"virtualmachines": "vms", "virtualmachineinstances": "vmis", "virtualmachineinstancemigrations": "migrations",
		"virtualmachineinstancereplicasets": "replica sets", "certificatesigningrequests": "certificate requests",
		"mutatingwebhookconfigurations": "webhook configurations", "validatingwebhookconfigurations": "webhook configurations",
		"kubevirts": "kubevirt objects", "customresourcedefinitions": "customresourcedefinition",
	}[kind]
	return cmp.Or(word, kind)
}
