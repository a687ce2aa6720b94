// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/test/chaos/plan"
)

func happened(f plan.Fault, p plan.Phase) incident {
	return incident{Fault: string(f), Phase: p.String(), Happened: true}
}

func makeReport() *report {
	r := &report{Seed: 7, Cells: plan.Cells()}
	r.add(&result{Seed: 7, Outcome: migrated, Seconds: 4,
		Incidents: []incident{happened(plan.CutAgents, plan.Transferring)}})
	r.add(&result{Seed: 8, Outcome: stayed, Seconds: 6,
		Incidents: []incident{happened(plan.CutAgents, plan.Transferring)}})
	r.add(&result{Seed: 9, Outcome: restarted, Seconds: 20, Incidents: []incident{
		happened(plan.SourceQEMU, plan.Started),
		{Fault: string(plan.TargetQEMU), Phase: plan.Owned.String(), Why: errNotReached.Error()},
	}})
	return r
}

func rowOf(t *testing.T, table, name string) []string {
	t.Helper()
	for line := range strings.Lines(table) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Fields(rest)
		}
	}
	t.Fatalf("no row %q in:\n%s", name, table)
	return nil
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := makeReport().table(&out); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		string(plan.CutAgents):  "· · · · 1m1s · · · · 2 0 4.0 6.0",
		string(plan.SourceQEMU): "· · · 1r · · · · · 1 0 20.0 20.0",
		"all":                   "· · · 1r 1m1s · · · · 3 0 6.0 20.0",
	} {
		if got := strings.Join(rowOf(t, out.String(), name), " "); got != want {
			t.Errorf("row %q is %q, want %q", name, got, want)
		}
	}
	if strings.Contains(out.String(), string(plan.TargetQEMU)) {
		t.Error("a fault that did not happen has a row")
	}
	if want := "migrated 1, s stayed 1, r restarted 1"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in:\n%s", want, out.String())
	}
}

func TestVerdict(t *testing.T) {
	r := makeReport()
	if err := r.verdict(); err != nil {
		t.Errorf("error without a failed run: %v", err)
	}
	r.Aborted = "no guest"
	if err := r.verdict(); !errors.Is(err, errFailed) {
		t.Errorf("an aborted test returns %v", err)
	}
	r.Aborted = ""
	r.Runs[1].fail("two guests %s", "execute")
	if err := r.verdict(); !errors.Is(err, errFailed) {
		t.Errorf("with a failed run, the error is %v", err)
	}
	path := filepath.Join(t.TempDir(), "a", "chaos.json")
	var out bytes.Buffer
	if err := r.publish(&out, path); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "seed 8") || !strings.Contains(out.String(), "FAILED: two guests execute") {
		t.Errorf("the failure is missing in:\n%s", out.String())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read report
	if err := json.Unmarshal(text, &read); err != nil || len(read.Runs) != 3 || len(read.Summary) != 2 ||
		read.Summary[0].Failed != 1 {
		t.Errorf("%v: %s", err, text)
	}
}

func TestKilledGuest(t *testing.T) {
	tests := map[string]struct {
		incident incident
		want     bool
	}{
		"QEMU of the source":                         {happened(plan.SourceQEMU, plan.Requested), true},
		"agent of the source":                        {happened(plan.SourceAgent, plan.Switching), false},
		"launcher of the target before the transfer": {happened(plan.TargetLauncher, plan.Prepared), false},
		"launcher of the target with the guest":      {happened(plan.TargetLauncher, plan.Owned), true},
		"QEMU that did not run":                      {incident{Fault: string(plan.SourceQEMU), Phase: plan.Requested.String()}, false},
	}
	for name, test := range tests {
		if got := (&result{Incidents: []incident{test.incident}}).killedGuest(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestCutRuleset(t *testing.T) {
	got := cutRuleset(toAPIServer("10.200.0.1:6443"))
	for _, want := range []string{
		"table inet vireo_chaos {",
		"chain forward {\ntype filter hook forward priority -10; policy accept;\nip daddr 10.200.0.1 tcp dport 6443 drop",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}
