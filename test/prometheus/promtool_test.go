// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

const root = "../.."

// installed are the rules as they are installed in namespace kubevirt.
var installed = rules.All(rules.Settings{Namespace: "kubevirt"})

// promtool runs Prometheus' tool in a directory.
func promtool(t *testing.T, directory string, arguments ...string) {
	t.Helper()
	program := os.Getenv("VIREO_PROMTOOL")
	if program == "" {
		t.Fatal("set VIREO_PROMTOOL to the program promtool, or use make test")
	}
	command := exec.Command(program, arguments...)
	command.Dir = directory
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", arguments, err, output)
	}
}

// write writes a value as YAML into a file.
func write(t *testing.T, value any, path ...string) {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path...), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRulesAreValid(t *testing.T) {
	directory := t.TempDir()
	write(t, installed, directory, "rules.yaml")
	promtool(t, directory, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
}

func TestAlertsFireAndResolve(t *testing.T) {
	directory := t.TempDir()
	write(t, installed, directory, "rules.yaml")
	// Rules are evaluated until the last time of a scenario. Those that last for a day are evaluated less often, because
	// that takes long.
	tests := map[string][]map[string]any{"1m": {recordings()}}
	for _, scenario := range scenarios() {
		interval := "1m"
		if scenario.long {
			interval = "5m"
		}
		tests[interval] = append(tests[interval], scenario.test(t))
	}
	for interval, cases := range tests {
		write(t, map[string]any{
			"rule_files": []string{"rules.yaml"}, "evaluation_interval": interval,
			"group_eval_order": []string{rules.RecordingGroup, rules.AlertGroup}, "tests": cases,
		}, directory, interval+".yaml")
		promtool(t, directory, "test", "rules", interval+".yaml")
	}
}

// Each alert has a scenario in which it fires and one in which it does not.
func TestEveryAlertHasScenarios(t *testing.T) {
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, s := range scenarios() {
		key := s.alert + "/" + s.rule(t).Labels["severity"]
		fires[key] = fires[key] || s.firing != ""
		silent[key] = silent[key] || len(s.silent) > 0
	}
	for _, rule := range installed.Alerts() {
		key := rule.Alert + "/" + rule.Labels["severity"]
		if !fires[key] || !silent[key] {
			t.Errorf("%s: there is a scenario in which it fires: %t; in which it does not: %t", key, fires[key], silent[key])
		}
	}
}
