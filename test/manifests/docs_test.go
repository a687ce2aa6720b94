// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
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

// The source map names every directory of code and of tests.
func TestTheSourceMapHasEveryFolder(t *testing.T) {
	_, sources, found := strings.Cut(text(t, "docs/architecture.md"), "## Source map")
	if !found {
		t.Fatal("docs/architecture.md has no source map")
	}
	rows := strings.Split(sources, "\n")
	for _, below := range []string{
		"hack", "internal", "internal/agent", "internal/apiserver", "internal/broker",
		"internal/component", "internal/controller", "internal/controller/fleet", "internal/controller/install",
		"internal/controller/migration", "internal/controller/observe", "internal/controller/storage", "internal/decide",
		"internal/decide/instancetype", "internal/decide/migration", "internal/decide/snapshot", "internal/exporter",
		"internal/launcher", "internal/launcherpod", "internal/specsupport", "internal/vmistatus", "internal/webhook",
		"internal/wire", "test",
	} {
		// A row names the directory in its first column, and the folders below in its second.
		var row strings.Builder
		for _, text := range rows {
			if strings.HasPrefix(text, "| `"+below+"`") {
				row.WriteString(text)
			}
		}
		folders, err := os.ReadDir(filepath.Join(root, below))
		if err != nil {
			t.Fatal(err)
		}
		for _, folder := range folders {
			if folder.IsDir() && folder.Name() != "testdata" && !strings.Contains(row.String(), "`"+folder.Name()+"`") && !strings.Contains(sources, "`"+below+"/"+folder.Name()) {
				t.Errorf("the source map of docs/architecture.md lacks %s/%s", below, folder.Name())
			}
		}
	}
}

// namedFile is a path in backquotes with the extension of a file.
var namedFile = regexp.MustCompile("`([\\w./*-]+\\.(?:go|yaml|md|sh|tsv))`")

// namedDirectory is a path in backquotes without an extension.
var namedDirectory = regexp.MustCompile("`((?:api|cmd|config|docs|hack|internal|test)(?:/[\\w-]+)*)`")

// The directories and files that the pages for contributors name in backquotes exist: a path from the root, or a bare
// name somewhere below a directory that the same item or row names, or anywhere below internal when it names none.
func TestThePagesNameFilesThatExist(t *testing.T) {
	named := 0
	for _, page := range []string{"docs/architecture.md", "docs/conventions.md", "docs/glossary.md", "CONTRIBUTING.md"} {
		for _, item := range items(text(t, page)) {
			var below []string
			for _, m := range namedDirectory.FindAllStringSubmatch(item, -1) {
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(m[1]))); err != nil {
					t.Errorf("%s names %s, which is not in the repository", page, m[1])
					continue
				}
				below = append(below, m[1])
			}
			if len(below) == 0 {
				below = []string{"internal"}
			}
			for _, m := range namedFile.FindAllStringSubmatch(item, -1) {
				named++
				if !fileExists(t, m[1], below) {
					t.Errorf("%s names %s, which is neither in the repository nor below %v", page, m[1], below)
				}
			}
		}
	}
	if named == 0 {
		t.Error("the pages name no files")
	}
}

// items splits a page into rows of tables, items of lists and paragraphs.
func items(page string) []string {
	page = code.ReplaceAllString(page, "")
	return regexp.MustCompile(`\n(?:\n|- |\||\d+\. )`).Split(page, -1)
}

// fileExists reports whether a pattern matches a file of the repository, or the end of the path of a file below the
// directories.
func fileExists(t *testing.T, pattern string, below []string) bool {
	t.Helper()
	if found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern))); err != nil || len(found) > 0 {
		return err == nil
	}
	exists := false
	for _, directory := range below {
		err := filepath.WalkDir(filepath.Join(root, filepath.FromSlash(directory)),
			func(path string, _ fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				inside := path
				for range strings.Count(pattern, "/") {
					inside = filepath.Dir(inside)
				}
				end, err := filepath.Rel(filepath.Dir(inside), path)
				if err != nil {
					return err
				}
				matches, err := filepath.Match(filepath.FromSlash(pattern), end)
				exists = exists || matches
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	return exists
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

// limitConstant is a name and its directory, in the table of limits.
var limitConstant = regexp.MustCompile("\\| `(\\w+)` in `([\\w/*-]+)` \\|")

// The constants in the table of limits exist. Their values are not compared.
func TestTheTableOfLimitsNamesConstants(t *testing.T) {
	limits := limitConstant.FindAllStringSubmatch(text(t, "docs/conventions.md"), -1)
	if len(limits) == 0 {
		t.Fatal("docs/conventions.md has no table of limits")
	}
	for _, limit := range limits {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(limit[2]), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		name := regexp.MustCompile(`\b` + limit[1] + `\b`)
		if !slices.ContainsFunc(files, func(file string) bool {
			return name.MatchString(text(t, strings.TrimPrefix(filepath.ToSlash(file), root+"/")))
		}) {
			t.Errorf("docs/conventions.md names %s, which is not in %s", limit[1], limit[2])
		}
	}
}

// Pages wrap at 120 columns. Rows of tables, code and what is generated may be longer.
func TestThePagesWrap(t *testing.T) {
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "test/*/README.md", "hack/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if filepath.Base(file) == "compatibility.md" {
				continue
			}
			name := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
			for _, line := range strings.Split(code.ReplaceAllString(text(t, name), ""), "\n") {
				if utf8.RuneCountInString(line) > 120 && !strings.HasPrefix(strings.TrimSpace(line), "|") {
					t.Errorf("%s has a line of more than 120 columns: %.60s…", name, line)
				}
			}
		}
	}
}

// virtctlCommand is a call of virtctl in a page.
var virtctlCommand = regexp.MustCompile(`(?m)(?:^|[` + "`" + `$(])\s*virtctl ([a-z][a-z-]+)`)

// The page of virtctl shows each of its commands, and the pages show none that it has not.
func TestThePagesShowTheCommandsOfVirtctl(t *testing.T) {
	shown := map[string]string{}
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/spec/*.md", "docs/runbooks/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
			for _, m := range virtctlCommand.FindAllStringSubmatch(text(t, name), -1) {
				if name == "docs/virtctl.md" || shown[m[1]] == "" {
					shown[m[1]] = name
				}
			}
		}
	}
	// Cobra adds the first two when it runs. The last two need no page.
	has := map[string]bool{"completion": true, "help": true, "options": true, "version": true}
	for _, command := range virtctl.Command(cli.New("virtctl", genericiooptions.NewTestIOStreamsDiscard())).Commands() {
		if !command.Hidden && !has[command.Name()] && shown[command.Name()] != "docs/virtctl.md" {
			t.Errorf("docs/virtctl.md does not show virtctl %s", command.Name())
		}
		has[command.Name()] = true
	}
	for command, page := range shown {
		if !has[command] {
			t.Errorf("%s shows virtctl %s, which does not exist", page, command)
		}
	}
}

// reasonConstant is a constant with the reason of a condition or an event.
var reasonConstant = regexp.MustCompile(`(?m)^\s*(?:const )?(?:reason|Reason)\w*\s*=\s*"([A-Za-z]+)"`)

// The documents explain every reason of a condition or an event.
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
	for _, below := range []string{"internal/controller", "internal/agent", "internal/decide/migration/upgradecheck"} {
		err := filepath.WalkDir(filepath.Join(root, below), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && entry.Name() == "datavolume" {
				return fs.SkipDir // Its reasons are those of the importer's objects.
			}
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			for _, constant := range reasonConstant.FindAllStringSubmatch(
				text(t, strings.TrimPrefix(filepath.ToSlash(path), root+"/")), -1) {
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

// The record of dependencies gives the purpose of each library.
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
