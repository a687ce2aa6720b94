// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

// Each alert has a runbook, to which its URL leads, and each runbook an alert.
func TestEveryAlertHasARunbook(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var documented, alerts []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		documented = append(documented, name)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, heading := range []string{"# " + name, "## Meaning", "## Impact", "## Diagnosis", "## Mitigation"} {
			_, rest, found := strings.Cut(string(text)[at:], heading+"\n\n")
			if !found || strings.HasPrefix(strings.TrimSpace(rest), "#") && heading != "# "+name {
				t.Errorf("%s has no text below %q, or not in the order of the other runbooks", file, heading)
				continue
			}
			at = len(text) - len(rest)
		}
	}
	for _, rule := range installed.Alerts() {
		alerts = append(alerts, rule.Alert)
		if url := rule.Annotations["runbook_url"]; !strings.HasSuffix(url, "/docs/runbooks/"+rule.Alert+".md") {
			t.Errorf("the runbook of %s is %s", rule.Alert, url)
		}
	}
	slices.Sort(alerts)
	if diff := cmp.Diff(slices.Compact(alerts), documented); diff != "" {
		t.Errorf("docs/runbooks (-alerts +runbooks):\n%s", diff)
	}
}

// The queries of the dashboards are valid.
func TestDashboardsAreValid(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "config", "grafana", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Fatalf("there are dashboards %q, expected two", files)
	}
	for _, file := range files {
		directory, group := t.TempDir(), rules.Group{Name: filepath.Base(file)}
		queries, err := Queries(file, map[string]string{"namespace": "ns", "name": "demo"})
		if err != nil {
			t.Error(err)
		}
		for _, q := range queries {
			group.Rules = append(group.Rules,
				rules.Rule{Record: "query", Expr: q.Expr, Labels: map[string]string{"panel": q.Panel, "expr": q.Expr}})
		}
		write(t, rules.File{Groups: []rules.Group{group}}, directory, "queries.yaml")
		promtool(t, directory, "check", "rules", "--lint=none", "queries.yaml")
	}
}
