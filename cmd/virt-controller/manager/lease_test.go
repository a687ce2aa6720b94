// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func TestTheLeaderIsAPod(t *testing.T) {
	t.Setenv(podNameEnv, "virt-controller-1")
	options, flags := &Options{}, flag.NewFlagSet("virt-controller", flag.ContinueOnError)
	options.BindFlags(flags)
	if err := flags.Parse([]string{"--install-namespace=kubevirt"}); err != nil {
		t.Fatal(err)
	}
	var path, agent, body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		path, agent, body = r.URL.Path, r.UserAgent(), string(raw)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(raw)
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, UserAgent: "virt-controller",
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	lock, err := newLease(config, options)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Create(t.Context(),
		resourcelock.LeaderElectionRecord{HolderIdentity: lock.Identity(), LeaseDurationSeconds: 15}); err != nil {
		t.Fatal(err)
	}
	if path != "/apis/coordination.k8s.io/v1/namespaces/kubevirt/leases" || !strings.HasSuffix(agent, "/leader-election") {
		t.Errorf("%s by %s", path, agent)
	}
	if !strings.Contains(body, `"name":"virt-controller"`) || !strings.Contains(body, `"holderIdentity":"virt-controller-1"`) {
		t.Error(body)
	}
	if config.Timeout != 0 || config.UserAgent != "virt-controller" {
		t.Error("what applies to the Lease applies to other requests")
	}
}

func TestProcessesOutsideOfPodsDifferAsLeaders(t *testing.T) {
	first, err := leaderIdentity("")
	if err != nil {
		t.Fatal(err)
	}
	second, err := leaderIdentity("")
	if err != nil {
		t.Fatal(err)
	}
	if first == second || first == "" {
		t.Errorf("%q and %q", first, second)
	}
}
