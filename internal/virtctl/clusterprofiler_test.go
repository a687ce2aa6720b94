// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

const profilerPath = "/dump-cluster-profiler"

// runProfiler runs the command.
func runProfiler(s *virtctltest.Server, flags ...string) virtctltest.Result {
	return s.Run(virtctl.Execute, append([]string{"adm", "cluster-profiler"}, flags...)...)
}

func expectOutput(t *testing.T, got virtctltest.Result, code int, text string) {
	t.Helper()
	if got.Code != code || !strings.Contains(got.Out+got.ErrOut, text) {
		t.Errorf("got %+v, want %d %q", got, code, text)
	}
}

func TestClusterProfilerStartAndStop(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Record(http.MethodGet, "/start-cluster-profiler", http.StatusOK, "")
	s.Subresource(http.MethodGet, "/stop-cluster-profiler", func(w http.ResponseWriter, _ *http.Request) {
		virtctltest.Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "Unable to stop profiler.")
	})
	expectOutput(t, runProfiler(s, "--cmd", "start"), 0, "SUCCESS: started cpu profiling KubeVirt control plane\n")
	expectOutput(t, runProfiler(s, "--cmd", "stop"), 1, "Unable to stop profiler.")
	if got := len(s.Requests()); got != 1 {
		t.Errorf("%d requests", got)
	}
}

func TestClusterProfilerFlags(t *testing.T) {
	s := virtctltest.NewServer(t)
	for flags, want := range map[string]string{
		"":                         "--cmd must be set. Valid values are [start|stop|dump]",
		"--cmd pause":              "unknown profiler --cmd value, [pause]. must be of type start|stop|dump",
		"--cmd start -l a=b":       "labelSelector can only be used with 'dump' command",
		"--cmd dump --page-size 0": "page-size has to be larger than 0; got 0",
		"--cmd dump -l a==,":       "failed to parse label selector",
	} {
		expectOutput(t, runProfiler(s, strings.Fields(flags)...), 1, want)
	}
}

func TestClusterProfilerDump(t *testing.T) {
	s := virtctltest.NewServer(t)
	fails := false
	s.Subresource(http.MethodGet, profilerPath, func(w http.ResponseWriter, r *http.Request) {
		request := v1.ClusterProfilerRequest{}
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &request); err != nil || request.PageSize != 3 || request.LabelSelector != "a=b" {
			t.Errorf("got %s", body)
		}
		page := v1.ClusterProfilerResults{ComponentResults: map[string]v1.ProfilerResult{}}
		name := "virt-api-1"
		switch {
		case request.Continue == "":
			page.Continue = "second"
		case fails:
			http.Error(w, "no", http.StatusInternalServerError)
			return
		default:
			name = "virt-handler-1"
		}
		page.ComponentResults[name] = v1.ProfilerResult{PprofData: map[string][]byte{"heap.pprof": []byte(name)}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(page)
	})
	dir := filepath.Join(t.TempDir(), "out")
	dump := func(more ...string) virtctltest.Result {
		return runProfiler(s, append([]string{"--cmd", "dump", "--output-dir", dir, "--page-size", "3", "-l", "a=b"},
			more...)...)
	}
	expectOutput(t, dump(), 0, "SUCCESS: Dumped PProf 2 results for KubeVirt control plane to ["+dir+"]\n")
	for _, name := range []string{"virt-api-1", "virt-handler-1"} {
		if content, err := os.ReadFile(filepath.Join(dir, name, "heap.pprof")); err != nil || string(content) != name {
			t.Errorf("%s: %q %v", name, content, err)
		}
	}
	// An earlier directory is kept; a dump that failed can be continued in it.
	fails = true
	expectOutput(t, dump(), 1, `Continue token from last successful profiles fetch: "second"`)
	if old, err := filepath.Glob(dir + "-old-*"); err != nil || len(old) != 1 {
		t.Errorf("earlier directories: %v %v", old, err)
	}
	fails = false
	expectOutput(t, dump("--continue", "second", "--reuse-output-dir"), 0, "SUCCESS: Dumped PProf 1 results")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("%v %v", entries, err)
	}
}

func TestClusterProfilerOfAHostileServer(t *testing.T) {
	for name, results := range map[string]map[string]v1.ProfilerResult{
		"not the name of a Pod":   {"../evil": {}},
		"a profile with the name": {"pod": {PprofData: map[string][]byte{"../../evil": nil}}},
	} {
		s := virtctltest.NewServer(t)
		s.Subresource(http.MethodGet, profilerPath, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v1.ClusterProfilerResults{ComponentResults: results})
		})
		expectOutput(t, runProfiler(s, "--cmd", "dump", "--output-dir", filepath.Join(t.TempDir(), "out")), 1, name)
	}
}

func TestClusterProfilerWithoutPods(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Record(http.MethodGet, profilerPath, http.StatusNoContent, "")
	expectOutput(t, runProfiler(s, "--cmd", "dump", "--output-dir", filepath.Join(t.TempDir(), "out")), 0,
		"Dumped PProf 0 results")
}
