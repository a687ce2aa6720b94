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

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
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
	read(t, &api, "internal", "controller", "install", "kubevirt", "manifests", "templates", "virt-api.yaml")
	pods["virt-api"] = &api.Spec.Template.Spec
	var proxy appsv1.Deployment
	read(t, &proxy, "internal", "controller", "install", "kubevirt", "manifests", "templates", "virt-exportproxy.yaml")
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
		for namespace, shared := range map[string]bool{"hostPID": pod.HostPID, "hostNetwork": pod.HostNetwork,
			"hostIPC": pod.HostIPC} {
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
	read(t, &ds, "internal", "controller", "install", "kubevirt", "manifests", "templates", name+".yaml")
	return &ds.Spec.Template.Spec
}

// SECURITY.md says which program of virt-broker's Pod serves each verb, and what the verb is worth to an attacker.
func TestSecurityNamesEveryVerbOfTheBroker(t *testing.T) {
	_, table, found := strings.Cut(securitySections(t)["virt-broker"], "\n| verb |")
	verbs := regexp.MustCompile(`Verb = "([a-z-]+)"`).FindAllStringSubmatch(text(t, "internal/wire/brokerapi/verbs.go"), -1)
	if len(verbs) == 0 || !found {
		t.Error("internal/wire/brokerapi/verbs.go has no verbs, or SECURITY.md no table of them")
	}
	for _, match := range verbs {
		verb := brokerapi.Verb(match[1])
		of := "`" + string(verb.Program()) + "`"
		if verb == brokerapi.Ping || verb == brokerapi.WatchProgram {
			of = "all"
		}
		if row := "\n| `" + string(verb) + "` | " + of + " |"; !strings.Contains(table, row) {
			t.Errorf("SECURITY.md has no row for the verb %s of %s", verb, of)
		}
	}
	if rows := strings.Count(table, "\n| `"); rows != len(verbs) {
		t.Errorf("SECURITY.md has %d rows of verbs, of which there are %d", rows, len(verbs))
	}
}

// SECURITY.md says which programs have a capability or a host path.
func TestSecurityNamesThePrivilegesOfEachProgram(t *testing.T) {
	pod, section := podOfDaemonSet(t, "virt-broker"), securitySections(t)["virt-broker"]
	paths := map[string]string{}
	for _, volume := range pod.Volumes {
		paths[volume.Name] = volume.HostPath.Path
	}
	has := map[string]map[string]bool{}
	add := func(what, program string) {
		if has[what] == nil {
			has[what] = map[string]bool{}
		}
		has[what][program] = true
	}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		for _, capability := range c.SecurityContext.Capabilities.Add {
			add(string(capability), c.Name)
		}
		for _, m := range c.VolumeMounts {
			add(paths[m.Name], c.Name)
		}
	}
	for what, programs := range has {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(what) + "`[^|]*\\| ([^|]*) \\|").FindStringSubmatch(section)
		if row == nil {
			t.Errorf("SECURITY.md has no row for %s", what)
			continue
		}
		for _, program := range brokerapi.Programs {
			if named := row[1] == "all" || slices.Contains(strings.Split(row[1], ", "), "`"+string(program)+"`"); named != programs[string(program)] {
				t.Errorf("SECURITY.md says that %s has %s: %t", program, what, named)
			}
		}
	}
}

// The two halves of the node agent meet at sockets, and agree on who may connect to them.
func TestTheHalvesOfTheAgentMeet(t *testing.T) {
	agent, broker := podOfDaemonSet(t, "virt-handler"), podOfDaemonSet(t, "virt-broker")
	security := agent.Containers[0].SecurityContext
	if user, group := security.RunAsUser, security.RunAsGroup; user == nil || *user != brokerapi.ClientUID ||
		group == nil || *group != brokerapi.ClientUID {
		t.Errorf("virt-handler does not run as user and group %d, whose requests virt-broker accepts", brokerapi.ClientUID)
	}
	want := brokerapi.SocketDir("/var/lib/kubelet")
	for name, pod := range map[string]*corev1.PodSpec{"virt-handler": agent, "virt-broker": broker} {
		for i := range pod.Containers {
			dir := want
			if name == "virt-broker" {
				dir = filepath.Dir(brokerapi.Program(pod.Containers[i].Name).Socket(want))
			}
			if !slices.ContainsFunc(pod.Volumes,
				func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == dir }) {
				t.Errorf("%s does not have %s", name, dir)
			}
			if !slices.ContainsFunc(pod.Containers[i].VolumeMounts,
				func(m corev1.VolumeMount) bool { return m.MountPath == dir }) {
				t.Errorf("%s of %s does not mount %s", pod.Containers[i].Name, name, dir)
			}
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
					if !slices.ContainsFunc(rows,
						func(row string) bool { return strings.Contains(row, wordOf(resource)) && word.MatchString(row) }) {
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
