// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// text is a file of the repository.
func text(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestTheSourceMapHasEveryFolder: who looks for the place of something looks into the source map first.
func TestTheSourceMapHasEveryFolder(t *testing.T) {
	_, sources, found := strings.Cut(text(t, "docs/architecture.md"), "## Source map")
	if !found {
		t.Fatal("docs/architecture.md has no source map")
	}
	for _, below := range []string{"internal", "internal/handler", "internal/launcher", "test"} {
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

// The index of the decision records has each of them, in order and under its own title.
func TestTheIndexHasEveryDecision(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "adr", "[0-9]*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no decision records: %v", err)
	}
	var want []string
	for _, file := range files {
		base := filepath.Base(file)
		title, _, _ := strings.Cut(text(t, "docs/adr/"+base), "\n")
		number, title, found := strings.Cut(strings.TrimPrefix(title, "# "), ": ")
		if !found || !strings.HasPrefix(base, number+"-") {
			t.Errorf("docs/adr/%s begins with another number than its name, or with no title", base)
		}
		want = append(want, fmt.Sprintf("| [%s](%s) | %s |", number, base, title))
	}
	var got []string
	for _, line := range strings.Split(text(t, "docs/adr/README.md"), "\n") {
		if strings.HasPrefix(line, "| [") {
			got = append(got, line)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/adr/README.md (-records +index):\n%s", diff)
	}
}

var (
	code     = regexp.MustCompile("(?s)```.*?```")
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors are the names by which links reach the headings of a document, as GitHub makes them.
func anchors(document string) map[string]bool {
	found := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(code.ReplaceAllString(document, ""), -1) {
		found[strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return found
}

// Links from one document to another lead to a file that is there, and to a heading in it.
func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	var documents []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, files...)
	}
	links := 0
	for _, document := range documents {
		name, err := filepath.Rel(root, document)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(text(t, name), ""), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(found[1], "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, found[1])
				continue
			}
			if anchor != "" && !anchors(text(t, target))[anchor] {
				t.Errorf("%s links to %s, which has no such heading", name, found[1])
			}
		}
	}
	if links == 0 {
		t.Error("the documents have no links")
	}
}

// reasonConstant is a constant with the reason of a condition or an event.
var reasonConstant = regexp.MustCompile(`(?m)^\s*(?:const )?(?:reason|Reason)\w*\s*=\s*"([A-Za-z]+)"`)

// Whoever sees a reason in a condition or an event finds it in the docs.
func TestTheDocsNameEveryReason(t *testing.T) {
	var docs strings.Builder
	for _, pattern := range []string{"docs/*.md", "docs/spec/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			docs.WriteString(text(t, strings.TrimPrefix(filepath.ToSlash(file), root+"/")))
		}
	}
	found := 0
	for _, below := range []string{"internal/controller", "internal/handler/reconciler", "internal/upgradecheck"} {
		err := filepath.WalkDir(filepath.Join(root, below), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			for _, constant := range reasonConstant.FindAllStringSubmatch(text(t, strings.TrimPrefix(filepath.ToSlash(path), root+"/")), -1) {
				found++
				if !strings.Contains(docs.String(), "`"+constant[1]+"`") {
					t.Errorf("no page of docs names the reason %s of %s", constant[1], path)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("no constants of reasons were found")
	}
}

var (
	// module is one in backquotes in the first column of a table, with what may be one of several in braces.
	module = regexp.MustCompile("`([a-z0-9./_-]+)(?:\\{([a-z0-9,_-]+)\\})?`")
	// requirement is a direct one in go.mod.
	requirement  = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`)
	majorVersion = regexp.MustCompile(`/v[0-9]+$`)
)

// Whoever adds a library says what for.
func TestTheRecordOfDependenciesNamesEach(t *testing.T) {
	named := map[string]bool{}
	for _, line := range strings.Split(text(t, "docs/adr/0017-dependencies.md"), "\n") {
		columns := strings.Split(line, "|")
		if len(columns) != 4 {
			continue
		}
		for _, m := range module.FindAllStringSubmatch(columns[1], -1) {
			for _, name := range strings.Split(m[2], ",") {
				named[m[1]+name] = true
			}
		}
	}
	required := map[string]bool{}
	for _, r := range requirement.FindAllStringSubmatch(text(t, "go.mod"), -1) {
		required[majorVersion.ReplaceAllString(r[1], "")] = true
	}
	if len(required) == 0 {
		t.Fatal("go.mod requires nothing")
	}
	if diff := cmp.Diff(required, named); diff != "" {
		t.Errorf("docs/adr/0017-dependencies.md (-go.mod +record):\n%s", diff)
	}
}
