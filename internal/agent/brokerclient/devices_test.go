// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/broker"
	"github.com/vireo-project/vireo/internal/brokerapi"
	testbroker "github.com/vireo-project/vireo/test/broker"
)

// timeout bounds waiting for what should happen soon.
const timeout = 20 * time.Second

// tun is a node with the devices that every guest needs.
type tun struct{}

func (tun) Usable() (usable, kvm, known bool) { return true, false, true }

func (tun) Changed() <-chan struct{} { return nil }

// virt-handler is ready while its broker responds, and keeps what it knows of the devices while it does not.
func TestReadyWhileTheBrokerResponds(t *testing.T) {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, brokerapi.SocketName)
	connected := make(chan struct{}, 10)
	devices := brokerclient.NewDevices(brokerclient.New(socket), func() { connected <- struct{}{} })
	if err := devices.Ready(nil); err == nil {
		t.Error("virt-handler is ready before it has reached the broker")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- devices.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		stop, err := testbroker.ServeAt(socket, broker.Options{Devices: tun{}, PodsDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-connected:
		case <-time.After(timeout):
			t.Fatal("the broker was not reached")
		}
		expectReady(t, devices, true)
		stop()
		expectReady(t, devices, false)
		if usable, kvm, known := devices.Usable(); !usable || kvm || !known {
			t.Errorf("usable %t, KVM %t, known %t", usable, kvm, known)
		}
	}
}

func expectReady(t *testing.T, devices *brokerclient.Devices, want bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); (devices.Ready(nil) == nil) != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("ready: %t, want %t", !want, want)
		}
	}
}
