// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bufio"
	"bytes"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/vireo-project/vireo/"
	// maxCode and maxLines are the limits for the lines of the process, of which the first has no lines that are blank or only comments:
	// what has privileges on a node must be small enough to be read. Counted are all files of this module that the program is built from,
	// without tests. Lower the limits with the code, and leave no room. docs/adr/0088-the-agent-in-two.md
	maxCode  = 3870
	maxLines = 5236
)

// ours are the packages of this module that the process may be built from. internal/brokerapi is the only one that it shares with
// virt-handler, beside names of what is in a launcher Pod.
var ours = []string{
	"cmd/virt-broker", "internal/broker", "internal/broker/device", "internal/broker/devicerule", "internal/broker/network", "internal/broker/podprocess",
	"internal/broker/podresources", "internal/broker/pods", "internal/brokerapi", "internal/component/memorylimit", "internal/launcherpod/layout",
}

// forbidden are prefixes of packages that the process may not be built from: it has no client for the API server and no libvirt.
var forbidden = []string{"k8s.io/client-go/", "sigs.k8s.io/controller-runtime", "libvirt.org/"}

// runsPrograms are the functions of Go's libraries by which a process runs programs. github.com/cilium/ebpf imports os/exec, for a function
// for its tests, so that what counts is what is in the program.
var runsPrograms = []string{"syscall.forkExec", "syscall.Exec", "os.StartProcess", "os/exec.(*Cmd).Start"}

func TestTheBrokerIsSmall(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", `{{.ImportPath}}{{range .GoFiles}} {{$.Dir}}/{{.}}{{end}}`, ".")
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	code, all, linked := 0, 0, []string{}
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		name, isOurs := strings.CutPrefix(fields[0], module)
		for _, prefix := range forbidden {
			if strings.HasPrefix(fields[0], prefix) {
				t.Errorf("it is built from %s", fields[0])
			}
		}
		if !isOurs {
			continue
		}
		linked = append(linked, name)
		own, whole := 0, 0
		for _, file := range fields[1:] {
			inFile, of := countLines(t, file)
			own, whole = own+inFile, whole+of
		}
		t.Logf("%5d of %5d lines are code in %s", own, whole, name)
		code, all = code+own, all+whole
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(linked)
	if !slices.Equal(linked, ours) {
		t.Errorf("it is built from %v, want %v", linked, ours)
	}
	t.Logf("%5d of %5d lines are code in all", code, all)
	if code > maxCode || all > maxLines {
		t.Errorf("it has %d lines, of which %d are code: more than %d and %d", all, code, maxLines, maxCode)
	}
}

func TestTheBrokerRunsNoPrograms(t *testing.T) {
	program := filepath.Join(t.TempDir(), "virt-broker")
	if output, err := exec.Command("go", "build", buildTags, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	symbols, err := exec.Command("go", "tool", "nm", program).Output()
	if err != nil || !bytes.Contains(symbols, []byte(" T main.main\n")) {
		t.Fatalf("it has no symbols: %v", err)
	}
	for _, function := range runsPrograms {
		if bytes.Contains(symbols, []byte(" "+function+"\n")) {
			t.Errorf("it has %s", function)
		}
	}
}

// countLines returns how many lines of a file have code, and how many there are.
func countLines(t *testing.T, path string) (code, all int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		t.Fatal(err)
	}
	files, s, lines := token.NewFileSet(), scanner.Scanner{}, map[int]bool{}
	file := files.AddFile(path, -1, len(text))
	s.Init(file, text, nil, 0)
	for {
		position, kind, literal := s.Scan()
		if kind == token.EOF {
			return len(lines), bytes.Count(text, []byte("\n"))
		}
		if kind == token.SEMICOLON && literal == "\n" {
			continue
		}
		first := file.Line(position)
		for line := range strings.Count(literal, "\n") + 1 {
			lines[first+line] = true
		}
	}
}
