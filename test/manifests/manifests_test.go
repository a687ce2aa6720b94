// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package manifests checks the files of config/ and PROJECT against each other and against the limits of kubectl and
// etcd. The tests of the webhooks check that an API server accepts the manifests.
package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// Limits of a CRD as compact JSON, which kubectl and etcd use.
const (
	// annotationLimit is the limit for all annotations of an object in bytes (TotalAnnotationSizeLimitB of apimachinery's
	// pkg/api/validation/objectmeta.go). Client-side `kubectl apply` stores the object in an annotation.
	annotationLimit = 256 << 10
	// annotationsReserve is reserved for other annotations.
	annotationsReserve = 4 << 10
	// requestLimit is etcd's limit for a request (--max-request-bytes). The API server stores the CRD, the annotation and
	// the managed fields.
	requestLimit = 1536 << 10
)

// project has the kinds of PROJECT.
type project struct {
	Resources []struct {
		Group      string `json:"group"`
		Domain     string `json:"domain"`
		Kind       string `json:"kind"`
		Version    string `json:"version"`
		Controller bool   `json:"controller"`
	} `json:"resources"`
}

// crd has the fields of a CRD that the tests read.
type crd struct {
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Kind   string `json:"kind"`
			Plural string `json:"plural"`
		} `json:"names"`
		Scope    string `json:"scope"`
		Versions []struct {
			Name    string `json:"name"`
			Storage bool   `json:"storage"`
		} `json:"versions"`
	} `json:"spec"`
}

func read(t *testing.T, into any, path ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", filepath.Join(path...), err)
	}
}

// bases returns the generated CRDs by file name.
func bases(t *testing.T) map[string]crd {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in config/crd/bases: %v", err)
	}
	all := map[string]crd{}
	for _, file := range files {
		var c crd
		read(t, &c, "config", "crd", "bases", filepath.Base(file))
		all[filepath.Base(file)] = c
	}
	return all
}

// consulted are the kinds without a reconciler that another reconciler reads.
var consulted = []string{
	"migrations.kubevirt.io/MigrationPolicy", "backup.kubevirt.io/VirtualMachineBackupTracker",
	"instancetype.kubevirt.io/VirtualMachineInstancetype", "instancetype.kubevirt.io/VirtualMachineClusterInstancetype",
	"instancetype.kubevirt.io/VirtualMachinePreference", "instancetype.kubevirt.io/VirtualMachineClusterPreference",
}

// controllerRooms are the directories with reconcilers.
var controllerRooms = []string{
	"internal/controller", "internal/controller/migration", "internal/controller/fleet", "internal/controller/storage",
	"internal/controller/install",
}

// A CRD is installed only if a reconciler reads its objects. Others would be accepted without an effect.
func TestKindsWithAReconcilerAreInstalled(t *testing.T) {
	var p project
	read(t, &p, "PROJECT")
	reconciled := map[string]bool{}
	for _, r := range p.Resources {
		if !r.Controller {
			continue
		}
		reconciled[strings.TrimPrefix(r.Group+"."+r.Domain, ".")+"/"+r.Kind] = true
		room := strings.ToLower(r.Kind)
		found := false
		for _, below := range controllerRooms {
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(below), room, "controller.go"))
			found = found || err == nil
		}
		if !found {
			t.Errorf("PROJECT says that %s has a controller, and no directory %s of internal/controller has a controller.go",
				r.Kind, room)
		}
	}
	for _, kind := range consulted {
		reconciled[kind] = true
	}
	var want []string
	for file, c := range bases(t) {
		if reconciled[c.Spec.Group+"/"+c.Spec.Names.Kind] {
			want = append(want, "bases/"+file)
		}
	}
	if len(want) != len(reconciled) {
		t.Errorf("%d kinds have a controller in PROJECT or are in consulted, %d of them have a CRD in config/crd/bases: run make manifests, "+
			"and follow \"a new kind\" in docs/architecture.md", len(reconciled), len(want))
	}
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	read(t, &kustomization, "config", "crd", "kustomization.yaml")
	slices.Sort(want)
	slices.Sort(kustomization.Resources)
	if diff := cmp.Diff(want, kustomization.Resources); diff != "" {
		t.Errorf("config/crd/kustomization.yaml (-kinds with a controller +installed): follow \"a new kind\" in docs/architecture.md\n%s", diff)
	}
}

// PROJECT has every kind in every version that has Go types, and each has its CRD.
func TestProjectListsEveryKind(t *testing.T) {
	var p project
	read(t, &p, "PROJECT")
	var want, got []string
	for _, r := range p.Resources {
		got = append(got, strings.TrimPrefix(r.Group+"."+r.Domain, ".")+"/"+r.Version+"/"+r.Kind)
	}
	for _, c := range bases(t) {
		for _, version := range c.Spec.Versions {
			// The older version of the first group is a copy (hack/crd).
			if c.Spec.Group == "kubevirt.io" && version.Name == "v1alpha3" {
				continue
			}
			want = append(want, c.Spec.Group+"/"+version.Name+"/"+c.Spec.Names.Kind)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("PROJECT (-CRDs +PROJECT): follow \"a new kind\" in docs/architecture.md\n%s", diff)
	}
}

// kubevirt.io is served in both versions and stored as v1.
func TestCoreKindsAreServedInBothVersions(t *testing.T) {
	for file, c := range bases(t) {
		stored := 0
		var names []string
		for _, version := range c.Spec.Versions {
			names = append(names, version.Name)
			if version.Storage {
				stored++
			}
		}
		if stored != 1 {
			t.Errorf("%s: %d versions are stored", file, stored)
		}
		if c.Spec.Group == "kubevirt.io" && !slices.Equal(names, []string{"v1", "v1alpha3"}) {
			t.Errorf("%s is served as %v, want v1 and v1alpha3", file, names)
		}
	}
}

// A CRD fits into the annotation of a client-side `kubectl apply`, and with it into etcd.
func TestCRDsFit(t *testing.T) {
	for file := range bases(t) {
		var whole any
		read(t, &whole, "config", "crd", "bases", file)
		compact, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%-70s %6d bytes", file, len(compact))
		if len(compact) > annotationLimit-annotationsReserve {
			t.Errorf("%s has %d bytes as JSON: a client-side kubectl apply takes %d at most", file, len(compact),
				annotationLimit-annotationsReserve)
		}
		// The object, the annotation with escaped quotes, and the managed fields.
		if stored := 4 * len(compact); stored > requestLimit {
			t.Errorf("%s would take about %d bytes in etcd, which takes %d in one request", file, stored, requestLimit)
		}
	}
}

// The policies contain the full names of our accounts, in which config/default sets the namespace.
func TestPoliciesNameTheInstallation(t *testing.T) {
	var kustomization struct {
		Replacements []struct {
			Targets []struct {
				Select struct {
					Name string `json:"name"`
				} `json:"select"`
			} `json:"targets"`
		} `json:"replacements"`
	}
	read(t, &kustomization, "config", "default", "kustomization.yaml")
	replaced := func(policy string) bool {
		for _, r := range kustomization.Replacements {
			for _, target := range r.Targets {
				if regexp.MustCompile("^" + target.Select.Name + "$").MatchString(policy) {
					return true
				}
			}
		}
		return false
	}
	account := regexp.MustCompile(`'system:serviceaccount:([^:']*)`)
	found := 0
	files, err := filepath.Glob(filepath.Join(root, "config", "admission", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(data), "\n---\n") {
			var policy struct {
				Kind     string `json:"kind"`
				Metadata struct {
					Name string `json:"name"`
				} `json:"metadata"`
			}
			if err := yaml.Unmarshal([]byte(document), &policy); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if policy.Kind != "ValidatingAdmissionPolicy" {
				continue
			}
			names := account.FindAllStringSubmatch(document, -1)
			if len(names) == 0 {
				continue // It is about everybody.
			}
			found++
			if len(names) != 1 || names[0][1] != "kubevirt" || !replaced(policy.Metadata.Name) {
				t.Errorf("%s: policy %s names the accounts %q: want those of namespace kubevirt in one place, which a replacement of "+
					"config/default selects", file, policy.Metadata.Name, names)
			}
		}
	}
	if found == 0 {
		t.Error("no policies in config/admission that name an account")
	}
}

// TestManualRoleAggregation checks that config/manual-role-aggregation changes the label of each ClusterRole that
// aggregates.
func TestManualRoleAggregation(t *testing.T) {
	const prefix = "rbac.authorization.k8s.io/aggregate-to-"
	data, err := os.ReadFile(filepath.Join(root, "config", "rbac", "users.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, document := range strings.Split(string(data), "\n---\n") {
		var role struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		for label := range role.Metadata.Labels {
			if strings.HasPrefix(label, prefix) {
				want[role.Metadata.Name] = label
			}
		}
	}
	var component struct {
		Patches []struct {
			Target struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
			} `json:"target"`
			Patch string `json:"patch"`
		} `json:"patches"`
	}
	read(t, &component, "config", "manual-role-aggregation", "kustomization.yaml")
	for _, p := range component.Patches {
		var operations []struct {
			Op    string `json:"op"`
			Path  string `json:"path"`
			Value string `json:"value"`
		}
		if err := yaml.Unmarshal([]byte(p.Patch), &operations); err != nil {
			t.Fatal(err)
		}
		for _, o := range operations {
			if p.Target.Kind == "ClusterRole" && o.Op == "replace" && o.Value == "false" {
				got[p.Target.Name] = strings.ReplaceAll(strings.TrimPrefix(o.Path, "/metadata/labels/"), "~1", "/")
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 3 {
		t.Errorf("config/manual-role-aggregation (-roles that aggregate +changed):\n%s", diff)
	}
}
