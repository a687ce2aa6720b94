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

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const module = "github.com/vireo-project/vireo/"

// maxCode is the limit for the lines of code of a program, without those that are blank or only comments: what has
// privileges on a node must be small enough to be read in an afternoon.
const maxCode = 3050

// programs are the programs of virt-broker's Pod, with the limits for their lines of code and for all lines. Counted
// are all files of this module that a program is built from, without tests. Lower the limits with the code, and leave
// no room. docs/adr/0088-the-agent-in-two.md
var programs = map[brokerapi.Program]struct {
	code, all int
	// ours are the packages of this module that it may be built from, beside those of all programs.
	ours []string
	// forbidden are prefixes of packages that it may not be built from, beside those of all programs.
	forbidden []string
}{
	brokerapi.Broker: {3046, 4144, []string{"internal/broker", "internal/broker/devicerule"},
		[]string{"google.golang.org/grpc", "github.com/vishvananda/netlink", "github.com/google/nftables"}},
	brokerapi.NetworkBroker: {2491, 3482, []string{"internal/broker/network", "internal/wire/brokerapi/networkapi"},
		[]string{"google.golang.org/grpc", "github.com/cilium/ebpf"}},
	brokerapi.DevicePlugin: {2156, 3062, []string{"internal/broker/device"},
		[]string{"github.com/cilium/ebpf", "github.com/vishvananda/netlink", "github.com/google/nftables"}},
}

// shared are the packages of this module that every program may be built from. They share internal/wire/brokerapi,
// the limit for their memory and the names of what is in a launcher Pod with virt-handler.
var shared = []string{
	"internal/broker/podprocess", "internal/broker/pods", "internal/broker/server", "internal/wire/brokerapi",
	"internal/component/memorylimit", "internal/launcherpod/layout",
}

// forbidden are prefixes of packages that no program may be built from: they have no client for the API server and no
// libvirt.
var forbidden = []string{"k8s.io/client-go/", "sigs.k8s.io/controller-runtime", "libvirt.org/"}

// buildTags are those of the programs in their image: see the Makefile.
const buildTags = "-tags=netgo,osusergo,grpcnotrace"

// runsPrograms are the functions of Go's libraries by which a process runs programs. github.com/cilium/ebpf imports
// os/exec, for a function for its tests, so that what counts is what is in the program.
var runsPrograms = []string{"syscall.forkExec", "syscall.Exec", "os.StartProcess", "os/exec.(*Cmd).Start"}

func TestThePrograms(t *testing.T) {
	if len(programs) != len(brokerapi.Programs) {
		t.Errorf("there are %d programs, and limits for %d", len(brokerapi.Programs), len(programs))
	}
	for program, limit := range programs {
		t.Run(string(program), func(t *testing.T) {
			if limit.code > maxCode {
				t.Errorf("the limit is %d lines of code", limit.code)
			}
			code, all, linked := countProgram(t, program, append(limit.forbidden, forbidden...))
			ours := slices.Concat(shared, limit.ours, []string{"cmd/" + string(program)})
			slices.Sort(ours)
			if !slices.Equal(linked, ours) {
				t.Errorf("it is built from %v, want %v", linked, ours)
			}
			t.Logf("%5d of %5d lines are code in all", code, all)
			if code > limit.code || all > limit.all {
				t.Errorf("it has %d lines, of which %d are code: more than %d and %d", all, code, limit.all, limit.code)
			}
		})
	}
}

// countProgram counts the lines of a program, and returns the packages of this module that it is built from.
func countProgram(t *testing.T, program brokerapi.Program, forbidden []string) (code, all int, linked []string) {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-f", `{{.ImportPath}}{{range .GoFiles}} {{$.Dir}}/{{.}}{{end}}`, sourceOf(program))
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
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
	return code, all, linked
}

// sourceOf returns the path of a program's package.
func sourceOf(program brokerapi.Program) string { return "../" + string(program) }

func TestTheProgramsRunNoPrograms(t *testing.T) {
	for _, program := range brokerapi.Programs {
		built := filepath.Join(t.TempDir(), string(program))
		if output, err := exec.Command("go", "build", buildTags, "-o", built,
			sourceOf(program)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		symbols, err := exec.Command("go", "tool", "nm", built).Output()
		if err != nil || !bytes.Contains(symbols, []byte(" T main.main\n")) {
			t.Fatalf("%s has no symbols: %v", program, err)
		}
		for _, function := range runsPrograms {
			if bytes.Contains(symbols, []byte(" "+function+"\n")) {
				t.Errorf("%s has %s", program, function)
			}
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
