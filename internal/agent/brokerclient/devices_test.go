// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/test/broker"
)

// timeout bounds waiting for what should happen soon.
const timeout = 20 * time.Second

// virt-handler is ready while its broker responds, and keeps what it knows of the devices while it does not.
func TestReadyWhileTheBrokerResponds(t *testing.T) {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	connected := make(chan struct{}, 10)
	devices := brokerclient.NewDevices(brokerclient.New(dir), func() { connected <- struct{}{} })
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
		stop, err := broker.ServeAt(dir, broker.Options{PodsDir: t.TempDir()})
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

// virt-handler is not ready while one of the programs does not respond.
func TestReadyOnlyWithAllPrograms(t *testing.T) {
	for _, without := range brokerapi.Programs {
		dir, err := os.MkdirTemp("", "b")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		stop, err := broker.ServeAt(dir, broker.Options{PodsDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		hidden := without.Socket(dir) + ".hidden"
		if err := os.Rename(without.Socket(dir), hidden); err != nil {
			t.Fatal(err)
		}
		devices := brokerclient.NewDevices(brokerclient.New(dir), func() {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- devices.Start(ctx) }()
		for deadline := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
			if err := devices.Ready(nil); err != nil && strings.HasPrefix(err.Error(), string(without)+" ") &&
				time.Until(deadline) < timeout-time.Second {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("without %s: %v", without, devices.Ready(nil))
			}
		}
		if err := os.Rename(hidden, without.Socket(dir)); err != nil {
			t.Fatal(err)
		}
		expectReady(t, devices, true)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
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
