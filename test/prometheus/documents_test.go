// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/controller/kubevirt/rules"
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

// query is an expression of a dashboard.
type query struct{ panel, expr string }

// queries returns the expressions of a dashboard, with values for Grafana's variables.
func queries(t *testing.T, file string) []query {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$namespace", "ns", "$name", "demo")
	var all []query
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("%s: panel %q has no query", file, panel.Title)
		}
		for _, target := range panel.Targets {
			expr := variables.Replace(target.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: panel %q has an unknown variable: %s", file, panel.Title, target.Expr)
			}
			all = append(all, query{panel.Title, expr})
		}
	}
	return all
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
		for _, q := range queries(t, file) {
			group.Rules = append(group.Rules, rules.Rule{Record: "query", Expr: q.expr, Labels: map[string]string{"panel": q.panel, "expr": q.expr}})
		}
		write(t, rules.File{Groups: []rules.Group{group}}, directory, "queries.yaml")
		promtool(t, directory, "check", "rules", "--lint=none", "queries.yaml")
	}
}
