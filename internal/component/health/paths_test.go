// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package health_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"testing"

	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/metrics"
)

// TestPathOfClients checks that the server of virt-controller, virt-handler and virt-exportproxy answers clients that
// join a path which starts with a slash to an address that ends in one.
func TestPathOfClients(t *testing.T) {
	server, err := metrics.NewServer(metrics.Options{
		Address: "127.0.0.1:0",
		Health:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "healthy") }),
	})
	if err != nil {
		t.Fatal(err)
	}
	address := "https://" + server.Listener.Addr().String() + "/"
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+health.Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || string(body) != "healthy" {
		t.Errorf("%s, %q, %v", response.Status, body, err)
	}
}
