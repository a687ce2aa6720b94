// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/server"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

func TestUnresponsiveGuestsDoNotDelayOtherNamespaces(t *testing.T) {
	const otherUID, otherPod = types.UID("5ac1a1e4-2a7c-4dbb-8a0e-0f9a3a6d8b11"),
		types.UID("d1f8c1fb-37b5-4f4f-9f6a-1d6a4e2f8c55")
	otherKey := types.NamespacedName{Namespace: "bank", Name: "db"}
	vmi, pod := instance(), launcherPod()
	vmi.Namespace, vmi.UID = otherKey.Namespace, otherUID
	pod.Namespace, pod.UID, pod.OwnerReferences[0].UID = otherKey.Namespace, otherPod, otherUID
	n := newNode(t, func(o *server.Options) {
		o.Limits = server.Limits{GuestRequests: 3, GuestRequestsPerNamespace: 2, GuestRequestQueue: 1}
		other := o.Connections.(connections).Launcher(otherPod)
		other.SetAgent(guestAgent())
		domain := &libvirtxml.Domain{Name: launcherpod.DomainName(otherKey.Namespace, otherKey.Name)}
		if err := other.Start(context.Background(), domain, false); err != nil {
			t.Fatal(err)
		}
	}, instance(), launcherPod(), vmi, pod)
	n.launcher.SetAgent(guestAgent())
	_, resume := n.launcher.Slow("agent")
	defer resume()
	codes := make(chan int, 4)
	for range cap(codes) {
		go func() {
			response, err := n.client.Get(n.url("", agentapi.GuestOSInfo))
			if err != nil {
				codes <- 0
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			codes <- response.StatusCode
		}()
	}
	// Two run, one is queued, and one is rejected.
	if code := <-codes; code != http.StatusTooManyRequests {
		t.Fatalf("the request above the limit got %d", code)
	}
	code, body := n.do(http.MethodPut, n.url("", agentapi.Freeze), "")
	expectStatus(t, code, body, http.StatusTooManyRequests, "3 requests to guests of namespace shop")
	elsewhere := "https://" + n.address + agentapi.VMIPath(otherKey, agentapi.GuestOSInfo) + "?" + agentapi.UIDParameter +
		"=" + string(otherUID)
	if code, body := n.do(http.MethodGet, elsewhere, ""); code != http.StatusOK ||
		!strings.Contains(string(body), "Debian 13") {
		t.Errorf("a guest of another namespace: %d %s", code, body)
	}
	resume()
	for range cap(codes) - 1 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("a request within the limit got %d", code)
		}
	}
}
