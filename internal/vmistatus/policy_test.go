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

// The API server restricts agents to the fields that the tables assign to them.
func TestPolicyKnowsTheWriters(t *testing.T) {
	policy, err := os.ReadFile(filepath.Join("..", "..", "config", "admission", "node-restriction.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	agentFields := maps.Clone(migrationOwners)
	maps.DeleteFunc(agentFields, func(_ string, w Writer) bool { return w == Controller })
	controllers := maps.Clone(fieldOwners)
	maps.DeleteFunc(controllers, func(field string, o owners) bool { return o != byController || field == "nodeName" })
	for variable, table := range map[string][]string{
		"agentFields": slices.Sorted(maps.Keys(agentFields)), "controllers": slices.Sorted(maps.Keys(controllers)),
	} {
		list := regexp.MustCompile(`- name: ` + variable + `\s+expression: >-\s+\[([^\]]*)\]`).FindSubmatch(policy)
		if list == nil {
			t.Fatalf("the policy has no variable %s", variable)
		}
		var fields []string
		for _, field := range regexp.MustCompile(`'(\w+)'`).FindAllSubmatch(list[1], -1) {
			fields = append(fields, string(field[1]))
		}
		slices.Sort(fields)
		if !slices.Equal(fields, table) {
			t.Errorf("%s: the policy has %v, the table %v", variable, fields, table)
		}
	}
}
