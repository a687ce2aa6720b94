// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

func write(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSlowest(t *testing.T) {
	dir := t.TempDir()
	log := "=== RUN TestX\n?   \t" + module + "api\t[no test files]\nok  \t" + module + "cached\t(cached)\n" +
		"FAIL\t" + module + "broken [build failed]\nFAIL\n"
	for i := range shown + 1 {
		log += fmt.Sprintf("ok  \t%sinternal/p%d\t%d.5s\tcoverage: 1%%\n", module, i, i)
	}
	write(t, dir, "1.log", []byte(log))
	write(t, dir, "2.log", []byte("FAIL\t"+module+"internal/bad\t100.123s\n"))
	report, err := json.Marshal([]types.Report{{SpecReports: types.SpecReports{
		{LeafNodeType: types.NodeTypeBeforeSuite, RunTime: 2 * time.Second},
		{LeafNodeType: types.NodeTypeIt, ContainerHierarchyTexts: []string{"a guest"}, LeafNodeText: "boots", RunTime: 3 * time.Second},
		{LeafNodeType: types.NodeTypeIt, LeafNodeText: "moves", RunTime: time.Second, State: types.SpecStateFailed},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "specs.json", report)

	var out strings.Builder
	if err := run(dir, &out); err != nil {
		t.Fatal(err)
	}
	want := "=== slowest packages (12 ran)\n 100.1s  internal/bad (failed)\n"
	for i := shown; i > 1; i-- {
		want += fmt.Sprintf("%6.1fs  internal/p%d\n", float64(i)+0.5, i)
	}
	want += "=== slowest specs (3 ran)\n   3.0s  a guest boots\n   2.0s  BeforeSuite\n   1.0s  moves (failed)\n"
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestNothingRan(t *testing.T) {
	var out strings.Builder
	if err := run(t.TempDir(), &out); err != nil || out.String() != "" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
