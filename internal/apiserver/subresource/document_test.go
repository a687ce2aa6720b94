// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryVerbIsDocumented checks that docs/spec/subresources.md contains every verb.
func TestEveryVerbIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "spec", "subresources.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range (&API{}).Verbs(nil) {
		if !strings.Contains(string(text), "`"+v.RBACName()+"`") {
			t.Errorf("%s is not in docs/spec/subresources.md: follow \"a new verb\" in docs/architecture.md", v.RBACName())
		}
	}
}
