// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package hack_test tests scripts of this directory.
package hack_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// If a stage fails, the table is printed and the script exits with that stage's status.
func TestStages(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `
		set -euo pipefail
		stage_logs=$1
		. hack/stages.sh
		stage "first" printf 'ok  \t%s\t7.5s\n' internal/x
		stage "second" sh -c 'echo oh >&2; exit 3'
		stage "third" true`, "bash", filepath.Join(t.TempDir(), "logs"))
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("the script ended with %v", err)
	}
	want := regexp.MustCompile(`(?s)oh\n=== stages\n +\d+s  ok +first\n +\d+s  failed +second\n +\d+s  in all\n` +
		`=== slowest packages \(1 ran\)\n +7\.5s  internal/x\n$`)
	if !want.Match(out) {
		t.Errorf("got:\n%s", out)
	}
}

// The output of a stage that runs beside others is printed after them, and the script exits with its status.
func TestStageBesideOthers(t *testing.T) {
	for command, want := range map[string]struct {
		status int
		row    string
	}{"true": {0, "ok"}, "exit 4": {4, "failed"}} {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", `
			set -euo pipefail
			stage_logs=$1
			. hack/stages.sh
			beside "aside" bash -c "echo oh; $2"
			stage "first" echo one
			finish_beside
			stage "last" echo end`, "bash", filepath.Join(t.TempDir(), "logs"), command)
		cmd.Dir = ".."
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want.status {
			t.Errorf("%s: the script ended with %d:\n%s", command, got, out)
		}
		last := `(=== last \(after \d+s\)\nend\n)`
		if want.status != 0 {
			last = ""
		}
		pattern := `(?s)=== aside, beside the next stages \(after \d+s\)\n=== first \(after \d+s\)\none\n=== output of aside\noh\n` + last +
			`=== stages\n +\d+s  ok +first\n +\d+s  ` + want.row + ` +aside \(beside others\)\n`
		if !regexp.MustCompile(pattern).Match(out) {
			t.Errorf("%s: got:\n%s", command, out)
		}
	}
}

// A stage that fails ends the one beside it.
func TestStageBesideIsEnded(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `
		set -euo pipefail
		stage_logs=$1
		. hack/stages.sh
		beside "aside" sleep 1000
		echo "job $beside_job"
		stage "first" false`, "bash", filepath.Join(t.TempDir(), "logs"))
	cmd.Dir = ".."
	out, _ := cmd.CombinedOutput()
	found := regexp.MustCompile(`job (\d+)`).FindSubmatch(out)
	if cmd.ProcessState.ExitCode() != 1 || found == nil {
		t.Fatalf("the script ended with %v:\n%s", cmd.ProcessState, out)
	}
	if _, err := os.Stat("/proc/" + string(found[1])); err == nil {
		t.Errorf("process %s still runs", found[1])
	}
}

// repository creates a Git repository with scripts of this directory, two commits and two packages.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T, scripts ...string) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.run("git", "init", "-q", "-b", "work")
	for _, script := range scripts {
		content, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		r.write("hack/"+script, string(content))
	}
	for _, name := range []string{"a", "b", "b/deep", "gone"} {
		r.write("internal/"+name+"/x.go", "package x")
		r.write("internal/"+name+"/x_test.go", "package x")
	}
	r.write("internal/untested/x.go", "package x")
	return r
}

func (r repository) write(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r repository) commit() {
	r.t.Helper()
	r.run("git", "add", "-A")
	r.run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "a change")
}

// head returns the beginning of the current commit's hash as a number, by which scripts choose.
func (r repository) head() uint64 {
	r.t.Helper()
	hash, err := strconv.ParseUint(strings.TrimSpace(r.run("git", "rev-parse", "--short=7", "HEAD")), 16, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return hash
}

// run returns what a command writes to its standard output.
func (r repository) run(name string, arguments ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), name, arguments...)
	cmd.Dir, cmd.Stderr = r.dir, r.t.Output()
	// .ci/run, which also runs these tests, sets EXTENDED on a machine without tools.
	cmd.Env = append(os.Environ(), "BASE=", "EXTENDED=", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("%s %v: %v", name, arguments, err)
	}
	return string(out)
}

func TestPackagesForTheRaceDetector(t *testing.T) {
	r := newRepository(t, "race.sh", "base.sh")
	expect := func(when string, want ...string) {
		t.Helper()
		got := strings.Fields(r.run("bash", "hack/race.sh", "--list"))
		if len(want) > 0 {
			if chosen := want[r.head()%uint64(len(want))]; len(got) == 0 || got[0] != chosen {
				t.Errorf("%s: got %v, and the commit chooses %s", when, got, chosen)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	r.commit()
	expect("a first commit has nothing before it")
	r.write("internal/a/new_test.go", "package x")
	expect("what is not committed counts", "./internal/a")
	r.write("internal/b/testdata/golden/one.xml", "<x/>")
	r.write("internal/untested/x.go", "package y")
	r.write("docs/x.md", "x")
	r.run("rm", "-r", "internal/gone")
	r.commit()
	expect("the last commit, with test data", "./internal/a", "./internal/b")
	r.write("internal/b/deep/x.go", "package y")
	r.commit()
	expect("the commit before the last does not count", "./internal/b/deep")
	r.run("git", "update-ref", "refs/remotes/origin/main", "HEAD~2")
	expect("all since the main branch", "./internal/a", "./internal/b", "./internal/b/deep")
	r.run("git", "update-ref", "refs/remotes/origin/main", "HEAD")
	expect("on the main branch", "./internal/b/deep")
}

func TestExtendedSpecs(t *testing.T) {
	r := newRepository(t, "third.sh", "base.sh")
	const spec = "var _ = Describe(\"x\", extended(1))"
	for _, name := range []string{"b", "c", "d", "e", "f"} {
		r.write("test/e2e/"+name+"x_test.go", spec)
	}
	r.write("test/integration/bx_test.go", spec)
	r.write("test/e2e/quick_test.go", "package x")
	r.commit()
	expect := func(when, want string) {
		t.Helper()
		r.commit()
		want = fmt.Sprintf("!extended || extended-%d%s", r.head()%3+1, want)
		if got := strings.TrimSpace(r.run("bash", "hack/third.sh")); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	r.write("internal/other/x.go", "package x")
	r.write("internal/quick/x.go", "package x")
	expect("a change of what has no extended specs", "")
	r.write("internal/ofbx/x.go", "package x")
	r.write("test/e2e/cx_test.go", spec+"\n")
	expect("a change of two subjects", " || of-bx || of-cx")
	for _, name := range []string{"b", "c", "d", "e", "f"} {
		r.write("internal/"+name+"x.go", "package x")
	}
	expect("a change of all", "")
	if got := strings.TrimSpace(r.run("env", "EXTENDED=0", "bash", "hack/third.sh")); got != "!extended" {
		t.Errorf("without extended specs: got %s", got)
	}
}

// Without a release to upgrade from, the script says what to set, before it builds anything.
func TestUpgradeFromNothing(t *testing.T) {
	r := newRepository(t, "test-upgrade.sh")
	r.commit()
	upgrade := func(from string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "hack/test-upgrade.sh")
		cmd.Dir, cmd.Env = r.dir, append(os.Environ(), "FROM="+from)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Fatalf("FROM=%s: the script has succeeded", from)
		}
		return string(out)
	}
	const unset, unknown = "set FROM to the tag or commit", "FROM=nowhere is neither a tag nor a commit"
	if out := upgrade(""); !strings.Contains(out, unset) {
		t.Errorf("without a tag: %s", out)
	}
	if out := upgrade("nowhere"); !strings.Contains(out, unknown) {
		t.Errorf("with an unknown tag: %s", out)
	}
	r.run("git", "tag", "v1.0.0")
	if out := upgrade(""); !strings.Contains(out, unset) {
		t.Errorf("with a tag of the commit itself: %s", out)
	}
	r.write("internal/a/x.go", "package y")
	r.commit()
	if out := upgrade(""); strings.Contains(out, unset) || !strings.Contains(out, "hack/steps.sh") {
		t.Errorf("with a tag, it should go on: %s", out)
	}
}
