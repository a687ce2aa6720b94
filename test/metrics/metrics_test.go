// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package metrics_test compares the metrics of all components with KubeVirt's, and docs/metrics.md with both.
package metrics_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md")

const (
	root   = "../.."
	prefix = "kubevirt_"
	// ownPrefix is that of the metrics that KubeVirt does not have.
	ownPrefix = "vireo_"
)

// row is one metric. The remark of one that KubeVirt does not have is the reason for it.
type row struct{ name, kind, labels, component, remark string }

func (r row) served() bool { return !strings.HasPrefix(r.remark, "not ") }

// list reads KubeVirt's metrics.
func list(t *testing.T) []row {
	t.Helper()
	return read(t, "metrics.tsv")
}

// read reads a list of metrics.
func read(t *testing.T, file string) []row {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := append(strings.Split(line, "\t"), "")
		if len(cells) < 5 {
			t.Fatalf("%q has %d cells", line, len(cells)-1)
		}
		rows = append(rows, row{cells[0], cells[1], cells[2], cells[3], cells[4]})
	}
	return rows
}

// shape is what a program that uses a metric depends on.
func shape(kind, labels string) string { return strings.TrimSpace(kind + " " + labels) }

// ours returns the shape of each metric with a prefix that our components serve.
func ours(t *testing.T, prefix string) map[string]string {
	t.Helper()
	shapes := map[string]string{}
	for _, family := range gather(t) {
		name, found := strings.CutPrefix(family.GetName(), prefix)
		if !found {
			continue
		}
		labels := map[string]bool{}
		for _, metric := range family.Metric {
			for _, label := range metric.Label {
				switch {
				case strings.HasPrefix(label.GetName(), "kubernetes_vmi_label_"): // on all metrics of libvirt
				case strings.HasPrefix(label.GetName(), "label_"):
					labels["label_*"] = true
				default:
					labels[label.GetName()] = true
				}
			}
		}
		shapes[name] = shape(strings.ToLower(family.GetType().String()), strings.Join(slices.Sorted(maps.Keys(labels)), " "))
	}
	return shapes
}

func TestMetricsAreKubeVirts(t *testing.T) {
	want := map[string]string{}
	for _, r := range list(t) {
		if _, twice := want[r.name]; twice {
			t.Errorf("%s is in the list twice", r.name)
		}
		if r.served() {
			want[r.name] = shape(r.kind, r.labels)
		}
	}
	if diff := cmp.Diff(want, ours(t, prefix)); diff != "" {
		t.Errorf("the metrics (-KubeVirt's +ours):\n%s", diff)
	}
}

// KubeVirt lacks only the metrics for which there is a reason.
func TestOwnMetricsHaveAReason(t *testing.T) {
	want := map[string]string{}
	for _, r := range read(t, "own.tsv") {
		if r.remark == "" {
			t.Errorf("there is no reason for %s", r.name)
		}
		want[r.name] = shape(r.kind, r.labels)
	}
	if diff := cmp.Diff(want, ours(t, ownPrefix)); diff != "" {
		t.Errorf("our own metrics (-list +served):\n%s", diff)
	}
}

// table returns the rows of metrics with a prefix, with the meaning that each metric itself has.
func table(t *testing.T, prefix string, rows []row) string {
	t.Helper()
	helps := map[string]string{}
	for _, family := range gather(t) {
		helps[strings.TrimPrefix(family.GetName(), prefix)] = family.GetHelp()
	}
	table := "| `" + prefix + "…` | type | labels | served by | meaning |\n|---|---|---|---|---|\n"
	for _, r := range rows {
		meaning := helps[r.name]
		if !r.served() {
			meaning = "**" + strings.ToUpper(r.remark[:1]) + r.remark[1:] + ".**"
		} else if r.remark != "" {
			meaning += " *" + strings.ToUpper(r.remark[:1]) + r.remark[1:] + ".*"
		}
		labels := ""
		if r.labels != "" {
			labels = "`" + strings.ReplaceAll(r.labels, " ", "`, `") + "`"
		}
		table += fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", r.name, r.kind, labels, r.component, meaning)
	}
	return table
}

// The page has a row for each metric.
func TestPage(t *testing.T) {
	table := table(t, prefix, list(t)) +
		"\nKubeVirt does not have these, on which [alerts](alerts.md#alerts-of-vireo) depend:\n\n" +
		table(t, ownPrefix, read(t, "own.tsv"))
	path := filepath.Join(root, "docs", "metrics.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- made by go test ./test/metrics -update -->\n", "<!-- end -->\n"
	before, rest, found := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("docs/metrics.md has no place for the table")
	}
	if want := before + begin + table + end + after; want != string(page) {
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("docs/metrics.md is old: go test ./test/metrics -update\n%s", cmp.Diff(string(page), want))
	}
}

// names are those of a row of the table in docs/migration.md, which may have several in braces.
var names = regexp.MustCompile("`(\\w+?)(?:\\{([a-z,]+)\\}(\\w+))?`")

// The table of metrics in docs/migration.md has all that are about migrations.
func TestMigrationPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "migration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| `kubevirt_vmi_…` |")
	table, _, _ = strings.Cut(table, "\n\n")
	got := map[string]bool{}
	for line := range strings.SplitSeq(table, "\n") {
		column, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range names.FindAllStringSubmatch(column, -1) {
			for one := range strings.SplitSeq(m[2], ",") {
				got[m[1]+one+m[3]] = true
			}
		}
	}
	want := map[string]bool{}
	for _, r := range list(t) {
		if name, ok := strings.CutPrefix(r.name, "vmi_"); ok &&
			(strings.HasPrefix(name, "migration") || name == "number_of_outdated") {
			want[name] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the metrics in docs/migration.md (-list +page):\n%s", diff)
	}
}
