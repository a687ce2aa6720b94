// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command slowest prints the ten slowest packages and the ten slowest specs of a test run. Its argument is a directory,
// where it reads the output of `go test` in *.log and Ginkgo's reports in *.json.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

const (
	module = "github.com/vireo-project/vireo/"
	// shown is how many packages and specs are printed.
	shown = 10
	// longestLine exceeds the length of all relevant lines of `go test`.
	longestLine = 1 << 20
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: slowest <directory of logs and reports>")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "slowest:", err)
		os.Exit(1)
	}
}

// timed is a package or spec with its duration.
type timed struct {
	name string
	took time.Duration
}

func run(dir string, out io.Writer) error {
	packages, err := collect(filepath.Join(dir, "*.log"), readPackages)
	if err != nil {
		return err
	}
	specs, err := collect(filepath.Join(dir, "*.json"), readSpecs)
	if err != nil {
		return err
	}
	printSlowest(out, "packages", packages)
	printSlowest(out, "specs", specs)
	return nil
}

func collect(pattern string, read func(io.Reader) ([]timed, error)) ([]timed, error) {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var all []timed
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		found, err := read(file)
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// packageLine matches the result line of a package in the output of `go test`. Cached results have no time and do not
// match.
var packageLine = regexp.MustCompile(`^(ok  |FAIL)\t(\S+)\t([0-9.]+s)`)

func readPackages(log io.Reader) ([]timed, error) {
	var found []timed
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		m := packageLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		took, err := time.ParseDuration(m[3])
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(m[2], module)
		if m[1] == "FAIL" {
			name += " (failed)"
		}
		found = append(found, timed{name, took})
	}
	return found, lines.Err()
}

func readSpecs(report io.Reader) ([]timed, error) {
	var suites []types.Report
	if err := json.NewDecoder(report).Decode(&suites); err != nil {
		return nil, err
	}
	var found []timed
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			name := spec.FullText()
			if !spec.LeafNodeType.Is(types.NodeTypeIt) {
				name = strings.TrimSpace(spec.LeafNodeType.String() + " " + name)
			}
			if spec.Failed() {
				name += " (failed)"
			}
			found = append(found, timed{name, spec.RunTime})
		}
	}
	return found, nil
}

func printSlowest(out io.Writer, what string, all []timed) {
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	_, _ = fmt.Fprintf(out, "=== slowest %s (%d ran)\n", what, len(all))
	for _, one := range all[:min(shown, len(all))] {
		_, _ = fmt.Fprintf(out, "%6.1fs  %s\n", one.took.Seconds(), one.name)
	}
}
