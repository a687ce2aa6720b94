// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// sources returns the source of each package of virt-controller's reconcilers, without tests.
func sources(t *testing.T) map[string]string {
	t.Helper()
	packages := map[string]string{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		packages[filepath.Base(filepath.Dir(path))] += string(content)
		return err
	})
	if err != nil || len(packages) == 0 {
		t.Fatalf("%d packages, %v", len(packages), err)
	}
	return packages
}

var (
	setup = regexp.MustCompile(`(?s)ctrl\.NewControllerManagedBy\(.*?\n}`)
	named = regexp.MustCompile(`Named\("([a-z]+)"\)`)
)

// In a queue that is not fair, one tenant delays all others.
func TestControllersOfNamespacedKindsHaveFairQueues(t *testing.T) {
	clusterWide := map[string]string{
		"node":                      "Nodes have no namespace",
		"evacuation":                "it reconciles Nodes",
		"certificatesigningrequest": "these requests have no namespace",
		"webhookcertificate":        "its only object is of the install namespace",
		"kubevirt":                  "KubeVirt objects are the administrator's",
		"workloadupdate":            "it reconciles the KubeVirt object",
	}
	found := 0
	for name, source := range sources(t) {
		if name == "kit" {
			continue
		}
		for _, controller := range setup.FindAllString(source, -1) {
			found++
			match := named.FindStringSubmatch(controller)
			if match == nil {
				t.Errorf("package %s has a controller without a name", name)
				continue
			}
			fair := strings.Contains(controller, "WithOptions(kit.Fair(")
			_, exempt := clusterWide[match[1]]
			if fair == exempt {
				t.Errorf("controller %s: a fair queue: %t, an exception: %t", match[1], fair, exempt)
			}
			if workers := workersOf(controller, source); fair && workers < 3 {
				t.Errorf("controller %s has %d workers: one slow reconciliation delays all tenants", match[1], workers)
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d controllers were found", found)
	}
}

// workersOf returns how many workers a controller with a fair queue has, according to a constant of its package.
func workersOf(controller, source string) int {
	name := regexp.MustCompile(`kit\.Fair\((\w+)\)`).FindStringSubmatch(controller)
	if name == nil {
		return 0
	}
	value := regexp.MustCompile(`\bconst ` + name[1] + ` = (\d+)\n`).FindStringSubmatch(source)
	if value == nil {
		return 0
	}
	workers, _ := strconv.Atoi(value[1])
	return workers
}

// Without outcome.Complete, the delay of a reconciliation that fails is lost.
func TestControllersKeepDelays(t *testing.T) {
	for name, source := range sources(t) {
		if strings.Contains(strings.ReplaceAll(source, "outcome.Complete(", ""), ".Complete(") {
			t.Errorf("package %s has a controller that is not completed by outcome.Complete", name)
		}
	}
}

// What a reconciler reads of the configuration must take effect when the configuration changes.
func TestReadersOfTheConfigurationAreRequeued(t *testing.T) {
	exempt := map[string]string{
		"node":                      "each agent renews its Lease every 10 s, which enqueues its Node",
		"certificatesigningrequest": "the lifetime applies to the next request",
	}
	for name, source := range sources(t) {
		reads, follows := strings.Contains(source, "Config.Current()"), strings.Contains(source, "kit.OnConfig(") ||
			strings.Contains(source, "kit.OnSettings(")
		if _, ok := exempt[name]; reads && follows == ok {
			t.Errorf("package %s reads the configuration: requeued on its change: %t, an exception: %t", name, follows, ok)
		}
	}
}

// A reconciler with OnSettings reads the configuration only by its settings. So no field can be read that requeues
// nothing.
func TestSettingsAreAllThatIsRead(t *testing.T) {
	for name, source := range sources(t) {
		if !strings.Contains(source, "kit.OnSettings(") {
			continue
		}
		body := regexp.MustCompile(`(?s)\nfunc settingsOf\(.*?\n}`).ReplaceAllString(source, "")
		for _, field := range regexp.MustCompile(`\bconfig\.[A-Z]\w*(\.\w+)?`).FindAllString(body, -1) {
			switch field {
			case "config.Current", "config.Certificates": // of the next certificates
			case "config.ChangedBlockTracking.Namespaces": // only which events matter
			default:
				t.Errorf("package %s reads %s outside of settingsOf", name, field)
			}
		}
	}
}
