// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheSourceMapHasEveryFolder: who looks for the place of something looks into the source map first, and into the table of tests.
func TestTheSourceMapHasEveryFolder(t *testing.T) {
	root := filepath.Join("..", "..")
	text := func(file string) string {
		raw, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	_, sources, found := strings.Cut(text("docs/architecture.md"), "## Source map")
	if !found {
		t.Fatal("docs/architecture.md has no source map")
	}
	for _, below := range []string{"internal", "internal/handler", "internal/launcher"} {
		folders, err := os.ReadDir(filepath.Join(root, below))
		if err != nil {
			t.Fatal(err)
		}
		for _, folder := range folders {
			if folder.IsDir() && !strings.Contains(sources, "`"+folder.Name()+"`") && !strings.Contains(sources, "`"+below+"/"+folder.Name()) {
				t.Errorf("the source map of docs/architecture.md lacks %s/%s", below, folder.Name())
			}
		}
	}
}
