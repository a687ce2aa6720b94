// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/specsupport"
)

var update = flag.Bool("update", false, "write docs/compatibility.md")

// document is the page that is generated from the results of these tests.
const document = "../../docs/compatibility.md"

// subject is a feature of a VM, with its fields.
type subject struct {
	title string
	paths []string
}

// subjects cover every field of a VMI's spec. A field belongs to the longest path.
var subjects = []subject{
	{"CPU", []string{"domain.cpu"}},
	{"Memory and resources", []string{"domain.memory", "domain.resources"}},
	{"Machine and firmware", []string{"architecture", "domain.machine", "domain.firmware", "domain.chassis", "domain.launchSecurity", "domain.devices.tpm"}},
	{"Hypervisor features", []string{"domain.features"}},
	{"Clock and timers", []string{"domain.clock"}},
	{"Disks", []string{
		"domain.devices.disks", "domain.devices.blockMultiQueue", "domain.ioThreadsPolicy", "domain.ioThreads", "domain.devices.filesystems",
	}},
	{"Volumes", []string{"volumes", "utilityVolumes"}},
	{"Network", []string{
		"networks", "domain.devices.interfaces", "domain.devices.networkInterfaceMultiqueue", "domain.devices.autoattachPodInterface",
		"hostname", "subdomain", "dnsPolicy", "dnsConfig",
	}},
	{"Devices of the node", []string{"domain.devices.gpus", "domain.devices.hostDevices", "resourceClaims"}},
	{"Other devices", []string{"domain.devices"}},
	{"Access to the guest", []string{"accessCredentials"}},
	{"Health", []string{"livenessProbe", "readinessProbe"}},
	{"Scheduling", []string{
		"affinity", "nodeSelector", "tolerations", "topologySpreadConstraints", "schedulerName", "priorityClassName", "serviceAccountName",
	}},
	{"Life cycle", []string{"evictionStrategy", "startStrategy", "terminationGracePeriodSeconds", "domain.rebootPolicy"}},
}

// TestDocument compares docs/compatibility.md with the results; -update writes it.
func TestDocument(t *testing.T) {
	want := render(t)
	if *update {
		if err := os.WriteFile(document, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/compatibility.md is stale: go test ./test/liveness -update")
	}
}

func render(t *testing.T) []byte {
	t.Helper()
	out := &bytes.Buffer{}
	fmt.Fprint(out, "# Compatibility with KubeVirt 1.9\n\n",
		"Made by `go test ./test/liveness -update` from the table that admission and the reconcilers use: do not edit.\n\n",
		"The API takes every field that KubeVirt's takes. A field that nothing implements yet is named by a warning when an object\n",
		"with it is created or changed. If starting without it would give another machine than was asked for, the VM does not start:\n",
		"its instance stays Pending, and the condition `Synchronized` has the reason `FieldNotImplemented` and names the field.\n\n")
	renderKinds(t, out)
	renderInstance(t, out)
	renderTable(out, "VirtualMachine", "Fields of a VM's spec outside of its template. All others work.", specsupport.VMFields)
	renderTable(out, "KubeVirt", "Fields of the configuration. All others work.", specsupport.KubeVirtFields)
	renderTable(out, "VirtualMachineInstanceMigration", "Fields of a migration's spec. All others work.", specsupport.MigrationFields)
	return out.Bytes()
}

// renderKinds lists the kinds of the API. A kind whose CRD is not installed has no reconciler yet.
func renderKinds(t *testing.T, out *bytes.Buffer) {
	t.Helper()
	const dir = "../../config/crd"
	kustomization, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	fmt.Fprint(out, "## Kinds\n\n| group | kind | versions | |\n|---|---|---|---|\n")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(data, crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var versions []string
		for i := range crd.Spec.Versions {
			versions = append(versions, crd.Spec.Versions[i].Name)
		}
		state := "not installed: nothing reconciles it yet"
		if bytes.Contains(kustomization, []byte(filepath.Base(file))) {
			state = "works"
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s |\n", crd.Spec.Group, crd.Spec.Names.Kind, strings.Join(versions, ", "), state)
	}
	fmt.Fprintln(out)
}

// renderInstance has a section for each feature of a VM.
func renderInstance(t *testing.T, out *bytes.Buffer) {
	t.Helper()
	bySubject := map[string][]result{}
	for _, r := range tryAll() {
		title := subjectOf(r.path)
		if title == "" {
			t.Errorf("spec.%s belongs to no subject of the document", r.path)
		}
		bySubject[title] = append(bySubject[title], r)
	}
	fmt.Fprint(out, "## VirtualMachineInstance\n\n",
		"Fields of the spec, and so of a VM's template. *Works* counts the fields that change the launcher Pod, the network, the disks or\n",
		"the domain when they are set.\n\n| feature | fields | work | keep the VM from starting | have no effect |\n|---|---|---|---|---|\n")
	for _, s := range subjects {
		renderCount(out, s.title, bySubject[s.title])
	}
	renderCount(out, "all", tryAll())
	fmt.Fprintln(out)
	for _, s := range subjects {
		fmt.Fprintf(out, "### %s\n\n", s.title)
		renderWorking(out, bySubject[s.title])
		rows := slices.DeleteFunc(slices.Clone(specsupport.VMIFields), func(f specsupport.Field) bool {
			return subjectOf(f.Path) != s.title
		})
		if len(rows) > 0 {
			renderRows(out, rows)
		}
	}
}

func renderCount(out *bytes.Buffer, title string, results []result) {
	count := map[verdict]int{}
	for _, r := range results {
		count[r.verdict]++
	}
	fmt.Fprintf(out, "| %s | %d | %d | %d | %d |\n", title, len(results), count[live]+count[elsewhere], count[refused], count[warned])
}

// TestReadme compares the numbers in README.md with the results.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all, working := tryAll(), 0
	for _, r := range all {
		if r.verdict == live || r.verdict == elsewhere {
			working++
		}
	}
	if line := fmt.Sprintf("- %d %% of the fields of a VM's instance:", 100*working/len(all)); !bytes.Contains(readme, []byte(line)) {
		t.Errorf("README.md is stale: %d of %d fields work: %q", working, len(all), line)
	}
}

// renderWorking lists fields that work, those of one parent together.
func renderWorking(out *bytes.Buffer, results []result) {
	var parents []string
	fields := map[string][]string{}
	for _, r := range results {
		if r.verdict != live && r.verdict != elsewhere {
			continue
		}
		parent, field := "", r.path
		if at := strings.LastIndex(r.path, "."); at >= 0 {
			parent, field = r.path[:at], r.path[at+1:]
		}
		if _, known := fields[parent]; !known {
			parents = append(parents, parent)
		}
		fields[parent] = append(fields[parent], field)
	}
	if len(parents) == 0 {
		fmt.Fprint(out, "Nothing works yet.\n\n")
		return
	}
	fmt.Fprint(out, "Works:\n\n")
	for _, parent := range parents {
		list := "`" + strings.Join(fields[parent], "`, `") + "`"
		if parent != "" {
			list = "`" + parent + "`: " + list
		}
		fmt.Fprintf(out, "- %s\n", list)
	}
	fmt.Fprintln(out)
}

func renderTable(out *bytes.Buffer, title, about string, rows []specsupport.Field) {
	fmt.Fprintf(out, "## %s\n\n%s\n\n", title, about)
	renderRows(out, rows)
}

func renderRows(out *bytes.Buffer, rows []specsupport.Field) {
	fmt.Fprint(out, "| field | | why, and what to do |\n|---|---|---|\n")
	for _, row := range rows {
		field := "`" + row.Path + "`"
		if len(row.Values) > 0 {
			field += ": " + strings.Join(row.Values, ", ")
		}
		fmt.Fprintf(out, "| %s | %s | %s |\n", field, row.Effect, row.Reason)
	}
	fmt.Fprintln(out)
}

// subjectOf returns the title of the subject of a field.
func subjectOf(path string) string {
	longest, title := "", ""
	for _, s := range subjects {
		for _, prefix := range s.paths {
			if isOrBelow(path, prefix) && len(prefix) > len(longest) {
				longest, title = prefix, s.title
			}
		}
	}
	return title
}
