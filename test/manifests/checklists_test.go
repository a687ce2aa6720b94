// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/test/constants"
)

// These tests keep the checklists of docs/architecture.md complete: each says what a new condition, verb or kind lacks.

// inRow is the first column of a row of a table.
var inRow = regexp.MustCompile(`(?m)^\| ([^|]*) \|`)

// inBackquotes is a word in backquotes.
var inBackquotes = regexp.MustCompile("`([^`]+)`")

func TestEveryConditionIsDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, row := range inRow.FindAllStringSubmatch(text(t, "docs/spec/virtualmachineinstance.md"), -1) {
		for _, word := range inBackquotes.FindAllStringSubmatch(row[1], -1) {
			documented[word[1]] = true
		}
	}
	const kind = "VirtualMachineInstanceConditionType"
	for name, condition := range constants.OfType(t, filepath.Join(root, "api/v1"), kind) {
		if !documented[condition] {
			t.Errorf("the condition %s (%s) has no row in docs/spec/virtualmachineinstance.md: follow "+
				"\"a new condition of a VMI\" in docs/architecture.md", condition, name)
		}
	}
}

// sourcesRead has what sources has read, by directory.
var sourcesRead = map[string]string{}

// sources returns the code below a directory, without tests.
func sources(t *testing.T, below string) string {
	t.Helper()
	if text, found := sourcesRead[below]; found {
		return text
	}
	var all strings.Builder
	directory := filepath.Join(root, filepath.FromSlash(below))
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		all.Write(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sourcesRead[below] = all.String()
	return all.String()
}

// withoutCommand are the verbs whose name no command of virtctl has, with the reason.
var withoutCommand = map[string]string{
	"start-cluster-profiler":                             "virtctl adm cluster-profiler composes its name",
	"stop-cluster-profiler":                              "virtctl adm cluster-profiler composes its name",
	"healthz":                                            "for probes",
	"virtualmachineinstances/freeze":                     "for backup tools, as in KubeVirt",
	"virtualmachineinstances/unfreeze":                   "for backup tools, as in KubeVirt",
	"virtualmachineinstances/backup":                     "not implemented",
	"virtualmachineinstances/redefine-checkpoint":        "not implemented",
	"virtualmachineinstances/sev/fetchcertchain":         "not implemented",
	"virtualmachineinstances/sev/querylaunchmeasurement": "not implemented",
	"virtualmachineinstances/sev/setupsession":           "not implemented",
	"virtualmachineinstances/sev/injectlaunchsecret":     "not implemented",
}

// Each verb has a description in the OpenAPI documents, and a command of virtctl or a reason. If its name is one of
// agentapi's, the agent serves it. TestEveryVerbIsDocumented of package subresource and TestEveryVerbIsInARole of
// test/access check the rest of the checklist.
func TestEveryVerbHasItsPlaces(t *testing.T) {
	commands, agent := sources(t, "internal/virtctl"), sources(t, "internal/agent/server")
	forwarded := map[string]string{}
	for name, verb := range constants.OfType(t, filepath.Join(root, "internal/wire/agentapi"), "") {
		forwarded[verb] = name
	}
	const follow = `: follow "a new verb" in docs/architecture.md`
	seen := map[string]bool{}
	for _, v := range (&subresource.API{}).Verbs(nil) {
		name := v.RBACName()
		seen[name] = true
		if v.Doc == "" {
			t.Errorf("%s has no Doc, which the OpenAPI documents need%s", name, follow)
		}
		if used := strings.Contains(commands, `"`+v.Name+`"`); used == (withoutCommand[name] != "") {
			t.Errorf("%s: a command of internal/virtctl has its name: %t. Add one, or its reason to withoutCommand%s",
				name, used, follow)
		}
		if constant := forwarded[v.Name]; constant != "" && !strings.Contains(agent, "agentapi."+constant) {
			t.Errorf("internal/agent/server does not serve agentapi.%s%s", constant, follow)
		}
	}
	for name := range withoutCommand {
		if !seen[name] {
			t.Errorf("withoutCommand has %s, which is no verb", name)
		}
	}
}

// kindPlace is a place of the checklist for a new kind.
type kindPlace struct {
	// what is missing where, for a message.
	what string
	// has reports whether a kind is there.
	has func(t *testing.T, c *crd) bool
	// except are the kinds that need not be there, with the reason.
	except map[string]string
}

const (
	consultedOnly = "it has no reconciler"
	noReconciler  = "it is stored only"
)

// exceptConsulted returns the kinds without a reconciler, and others with a reason.
func exceptConsulted(others map[string]string) map[string]string {
	except := map[string]string{"VirtualMachineInstancePreset": noReconciler}
	for _, kind := range consulted {
		except[filepath.Base(kind)] = consultedOnly
	}
	for kind, reason := range others {
		except[kind] = reason
	}
	return except
}

// room returns the directory of a kind's reconciler, or "".
func room(kind string) string {
	for _, below := range controllerRooms {
		path := filepath.Join(root, filepath.FromSlash(below), strings.ToLower(kind))
		if _, err := os.Stat(filepath.Join(path, "controller.go")); err == nil {
			return path
		}
	}
	return ""
}

// inRoom returns a function that reports whether a file of a kind's reconciler has a text.
func inRoom(pattern, wanted string) func(t *testing.T, c *crd) bool {
	return func(t *testing.T, c *crd) bool {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(room(c.Spec.Names.Kind), pattern))
		if err != nil {
			t.Fatal(err)
		}
		return room(c.Spec.Names.Kind) != "" && slices.ContainsFunc(files, func(file string) bool {
			raw, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(raw), wanted)
		})
	}
}

// healthTests returns the tests of the directories whose tests use health.Kstatus, without the specs of reconcilers,
// which name many kinds.
var healthTests = sync.OnceValue(func() string {
	texts := map[string]string{}
	_ = filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_spec_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		texts[filepath.Dir(path)] += string(raw)
		return err
	})
	var all strings.Builder
	for _, text := range texts {
		if strings.Contains(text, "health.Kstatus(") {
			all.WriteString(text)
		}
	}
	return all.String()
})

// hasHealthTest reports whether tests of a directory use a kind and health.Kstatus.
func hasHealthTest(_ *testing.T, c *crd) bool {
	return regexp.MustCompile(`\b` + c.Spec.Names.Kind + `\{`).MatchString(healthTests())
}

var kindPlaces = []kindPlace{
	{
		"a reconciler in cmd/virt-controller/manager", func(t *testing.T, c *crd) bool {
			t.Helper()
			return strings.Contains(sources(t, "cmd/virt-controller/manager"), strings.ToLower(c.Spec.Names.Kind)+".Reconciler{")
		}, exceptConsulted(nil),
	},
	{
		"WithOptions(kit.Fair(…)) in SetupWithManager of its reconciler, below internal/controller",
		inRoom("*.go", "kit.Fair("), exceptConsulted(map[string]string{"KubeVirt": "there is one object"}),
	},
	{
		"markers of its rights (+kubebuilder:rbac) in its reconciler, below internal/controller",
		inRoom("*.go", "+kubebuilder:rbac:groups="), exceptConsulted(nil),
	},
	{
		"specs (*_spec_test.go) beside its reconciler", inRoom("*_spec_test.go", "package "),
		exceptConsulted(map[string]string{"VirtualMachineSnapshotContent": "its specs are those of VirtualMachineSnapshot"}),
	},
	{
		"a webhook in config/webhook/manifests.yaml: its marker and its rules in internal/webhook/v1, and its hook in setup.go there",
		func(t *testing.T, c *crd) bool {
			t.Helper()
			return regexp.MustCompile(`(?m)^    - ` + c.Spec.Names.Plural + `$`).MatchString(text(t, "config/webhook/manifests.yaml"))
		}, map[string]string{
			"VirtualMachineInstancePreset":  noReconciler,
			"VirtualMachineSnapshotContent": "virt-controller creates it",
		},
	},
	{
		"a sample in config/samples", func(t *testing.T, c *crd) bool {
			t.Helper()
			samples, err := filepath.Glob(filepath.Join(root, "config/samples/*.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(samples, func(sample string) bool {
				raw, err := os.ReadFile(sample)
				return err == nil && regexp.MustCompile(`(?m)^kind: `+c.Spec.Names.Kind+`$`).Match(raw)
			})
		}, map[string]string{
			"MigrationPolicy":                   "docs/migration.md shows one",
			"VirtualMachineClusterInstancetype": "virt-controller installs common ones",
			"VirtualMachineClusterPreference":   "virt-controller installs common ones",
			"VirtualMachineInstance":            "the template of a VirtualMachine shows its spec",
			"VirtualMachineInstanceMigration":   "virtctl migrate creates it",
			"VirtualMachineInstancePreset":      noReconciler,
			"VirtualMachineInstancetype":        "virt-controller installs common ones for the cluster",
			"VirtualMachinePreference":          "virt-controller installs common ones for the cluster",
			"VirtualMachineSnapshotContent":     "virt-controller creates it",
		},
	},
	{
		"a test of its health as deployment tools see it, by health.Kstatus of test/health, and a row in docs/health.md",
		hasHealthTest, exceptConsulted(nil),
	},
	{
		"its resource in the roles of users, config/rbac/users.yaml", func(t *testing.T, c *crd) bool {
			t.Helper()
			return slices.Contains(strings.FieldsFunc(text(t, "config/rbac/users.yaml"), func(r rune) bool {
				return strings.ContainsRune(" ,[]\n", r)
			}), c.Spec.Names.Plural)
		}, nil,
	},
	{
		"a page in docs/spec that names its kind", func(t *testing.T, c *crd) bool {
			t.Helper()
			pages, err := filepath.Glob(filepath.Join(root, "docs/spec/*.md"))
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(pages, func(page string) bool {
				raw, err := os.ReadFile(page)
				return err == nil && regexp.MustCompile(`\b`+c.Spec.Names.Kind+`s?\b`).Match(raw)
			})
		}, map[string]string{"VirtualMachineInstancePreset": noReconciler},
	},
}

// Each kind has what its checklist says. TestKindsWithAReconcilerAreInstalled and TestProjectListsEveryKind check
// config/crd and PROJECT, TestEveryWorkloadIsAwaited of package kubevirt the uninstallation, and
// TestEveryRightHasASuite of test/rights the rights.
func TestEveryKindHasItsPlaces(t *testing.T) {
	for file, c := range bases(t) {
		kind := c.Spec.Names.Kind
		for _, place := range kindPlaces {
			has, reason := place.has(t, &c), place.except[kind]
			if !has && reason == "" {
				t.Errorf("%s (%s) lacks %s: follow \"a new kind\" in docs/architecture.md", kind, file, place.what)
			}
			if has && reason != "" {
				t.Errorf("%s has %s, and test/manifests has it as an exception: %s", kind, place.what, reason)
			}
		}
	}
}
