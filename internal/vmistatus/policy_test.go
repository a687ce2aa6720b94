// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The API server lets an agent write those fields of a migration that the table gives it.
func TestPolicyKnowsWhatAgentsTell(t *testing.T) {
	policy, err := os.ReadFile(filepath.Join("..", "..", "config", "admission", "node-restriction.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	told := regexp.MustCompile(`- name: told\s+expression: >-\s+\[([^\]]*)\]`).FindSubmatch(policy)
	if told == nil {
		t.Fatal("the policy has no variable told")
	}
	var allowed []string
	for _, field := range regexp.MustCompile(`'(\w+)'`).FindAllSubmatch(told[1], -1) {
		allowed = append(allowed, string(field[1]))
	}
	slices.Sort(allowed)
	agents := maps.Clone(migrationOwners)
	maps.DeleteFunc(agents, func(_ string, w Writer) bool { return w == Controller })
	if table := slices.Sorted(maps.Keys(agents)); !slices.Equal(allowed, table) {
		t.Errorf("the policy lets agents write %v, the table %v", allowed, table)
	}
}
