// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/brokerapi"
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
	pods := map[string]*corev1.PodSpec{}
	for _, name := range []string{"virt-handler", "virt-broker"} {
		pods[name] = podOfDaemonSet(t, name)
	}
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

func podOfDaemonSet(t *testing.T, name string) *corev1.PodSpec {
	t.Helper()
	var ds appsv1.DaemonSet
	read(t, &ds, "internal", "controller", "kubevirt", "operator", "manifests", name+".yaml")
	return &ds.Spec.Template.Spec
}

// SECURITY.md says what each verb of virt-broker is worth to an attacker.
func TestSecurityNamesEveryVerbOfTheBroker(t *testing.T) {
	section := securitySections(t)["virt-broker"]
	verbs := regexp.MustCompile(`Verb = "([a-z-]+)"`).FindAllStringSubmatch(text(t, "internal/brokerapi/verbs.go"), -1)
	if len(verbs) == 0 {
		t.Error("internal/brokerapi/verbs.go has no verbs")
	}
	for _, verb := range verbs {
		if !strings.Contains(section, "\n| `"+verb[1]+"` |") {
			t.Errorf("SECURITY.md has no row for the verb %s of virt-broker", verb[1])
		}
	}
	if rows := strings.Count(section, "\n| `") - strings.Count(section, "\n| `/") - len(podOfDaemonSet(t, "virt-broker").Containers[0].SecurityContext.Capabilities.Add); rows != len(verbs) {
		t.Errorf("SECURITY.md has %d rows of verbs of virt-broker, which has %d verbs", rows, len(verbs))
	}
}

// The two halves of the node agent meet at a socket, and agree on who may connect to it.
func TestTheHalvesOfTheAgentMeet(t *testing.T) {
	agent, broker := podOfDaemonSet(t, "virt-handler"), podOfDaemonSet(t, "virt-broker")
	if user := agent.Containers[0].SecurityContext.RunAsUser; user == nil || *user != brokerapi.ClientUID {
		t.Errorf("virt-handler does not run as user %d, whose requests virt-broker accepts", brokerapi.ClientUID)
	}
	want := path.Dir(brokerapi.Socket("/var/lib/kubelet"))
	for name, pod := range map[string]*corev1.PodSpec{"virt-handler": agent, "virt-broker": broker} {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == want }) ||
			!slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == want }) {
			t.Errorf("%s does not mount %s", name, want)
		}
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
