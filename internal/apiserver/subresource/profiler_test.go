// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/profile"
)

func TestProfilerDisabled(t *testing.T) {
	w := newWorld(t)
	for verb, what := range map[string]string{"start": "start profiler", "stop": "stop profiler",
		"dump": "dump profiler results"} {
		w.expect(http.MethodGet, root+verb+"-cluster-profiler", "", 403, "Unable to "+what+`. "ClusterProfiler" feature gate must be enabled`)
	}
}

func TestProfiler(t *testing.T) {
	w := newWorld(t)
	w.config.ClusterProfiler = true
	w.restart(func(a *API) {
		a.Profiles = &profile.Client{Pods: w.client, Namespace: installNamespace,
			TLS: func(string, string) (*tls.Config, error) {
				return nil, errors.New("no certificate yet")
			}}
	})
	// The agent's Pod has no port for profiles.
	w.expect(http.MethodGet, root+"start-cluster-profiler", "", 500,
		"Internal error encountered: pod virt-handler-node1 has no port")
	w.expect(http.MethodGet, root+"stop-cluster-profiler", "", 500,
		"Internal error encountered: pod virt-handler-node1 has no port")
	w.expect(http.MethodGet, root+"dump-cluster-profiler", `{"pageSize":1}`, 500, "Internal error encountered: pod virt-handler-node1 has no port")
	w.expect(http.MethodGet, root+"dump-cluster-profiler", "{", 400, "Can not unmarshal Request body")
	w.expect(http.MethodGet, root+"dump-cluster-profiler", `{"labelSelector":"=="}`, 400, "Internal error while looking up component pods for profiling")
	// Without a Pod, there is no content.
	if code, text := w.do(http.MethodGet, root+"dump-cluster-profiler", `{"labelSelector":"none"}`); code != http.StatusNoContent || text != "" {
		t.Errorf("got %d %s", code, text)
	}
}

func TestProfiles(t *testing.T) {
	w := newWorld(t)
	w.config.ClusterProfiler = true
	pod := agentPod(node)
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers = []corev1.Container{{Name: "virt-handler",
		Ports: []corev1.ContainerPort{{Name: "console", ContainerPort: int32(w.agent.Port)}}}}
	if err := w.client.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	w.agent.Profiles = v1.ProfilerResult{PprofData: map[string][]byte{"heap.pprof": []byte("heap")}}
	connect := w.agent.Authority.Client(t)
	w.restart(func(a *API) {
		a.Profiles = &profile.Client{
			Pods: w.client, Namespace: installNamespace, TLS: func(_, node string) (*tls.Config, error) { return connect(node) },
		}
	})
	w.expect(http.MethodGet, root+"start-cluster-profiler", "", 200, "")
	w.expect(http.MethodGet, root+"stop-cluster-profiler", "", 200, "")
	code, text := w.do(http.MethodGet, root+"dump-cluster-profiler", "")
	results := v1.ClusterProfilerResults{}
	if err := json.Unmarshal([]byte(text), &results); code != http.StatusOK || err != nil ||
		string(results.ComponentResults["virt-handler-node1"].PprofData["heap.pprof"]) != "heap" {
		t.Errorf("got %d %s", code, text)
	}
}
