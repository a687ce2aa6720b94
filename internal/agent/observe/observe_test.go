// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// timeout bounds waiting for what should happen soon.
const timeout = 20 * time.Second

func TestReadCapabilities(t *testing.T) {
	got, err := ReadCapabilities("testdata", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	want := &agentapi.Capabilities{
		Arch: "amd64", MachineTypes: []string{"pc-q35-10.0", "q35"}, HostModel: "EPYC", Vendor: "AMD",
		HostModelFeatures: []string{"arch-capabilities", "x2apic"},
		CPUFeatures:       []string{"aes", "arch-capabilities", "x2apic"},
		CPUModels:         []string{"EPYC", "qemu64"}, KnownCPUModels: []string{"EPYC", "Skylake-Server", "qemu64"},
		HypervFeatures: []string{"base", "synic", "synic2", "synictimer", "time", "vpindex"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	older := t.TempDir()
	for _, name := range []string{launcherpod.DomainCapabilities, launcherpod.HostCapabilities} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(older, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want.CPUFeatures = want.HostModelFeatures
	if got, err = ReadCapabilities(older, "amd64"); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("of an earlier launcher: %v %s", err, cmp.Diff(want, got))
	}
	if _, err := ReadCapabilities(t.TempDir(), "amd64"); err == nil {
		t.Error("no error for missing files")
	}
	broken := t.TempDir()
	for _, name := range []string{launcherpod.DomainCapabilities, launcherpod.HostCapabilities} {
		if err := os.WriteFile(filepath.Join(broken, name), []byte("<x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadCapabilities(broken, "amd64"); err == nil {
		t.Error("no error for malformed files")
	}
}

// server returns a client of an API server in memory that counts writes.
func server(writes *atomic.Int32) client.Client {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch,
			o ...client.PatchOption) error {
			err := c.Patch(ctx, obj, p, o...)
			if err == nil {
				writes.Add(1)
			}
			return err
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.CreateOption) error {
			writes.Add(1)
			return c.Create(ctx, obj, o...)
		},
	}).Build()
}

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for !check() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestHeartbeat(t *testing.T) {
	var writes atomic.Int32
	c := server(&writes)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Heartbeat{Client: c, Namespace: "kubevirt", Node: "n"}).Start(ctx) }()
	lease := &coordinationv1.Lease{}
	get := func() bool {
		return c.Get(context.Background(), client.ObjectKey{Namespace: "kubevirt", Name: "virt-handler.n"}, lease) == nil
	}
	eventually(t, "there is a Lease", get)
	if lease.Spec.RenewTime == nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "n" ||
		lease.Labels["kubevirt.io"] != agentapi.LabelValue {
		t.Errorf("got %+v", lease)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !get() || (lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "") {
		t.Errorf("the agent did not release the Lease: %+v", lease.Spec)
	}
	if writes.Load() != 2 {
		t.Errorf("%d writes, want one for the renewal and one for the release", writes.Load())
	}
}

func TestHeartbeatOnReconnect(t *testing.T) { synctest.Test(t, heartbeatOnReconnect) }

func heartbeatOnReconnect(t *testing.T) {
	var writes, checks atomic.Int32
	var disconnected, checkFails failure
	c := interceptor.NewClient(server(&writes).(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch,
			o ...client.PatchOption) error {
			if err := disconnected.load(); err != nil {
				return err
			}
			return c.Patch(ctx, obj, p, o...)
		},
	})
	disconnected.Store(true)
	checkFails.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	h := &Heartbeat{Client: c, Namespace: "kubevirt", Node: "n", OnReconnect: func(context.Context) error {
		checks.Add(1)
		return checkFails.load()
	}}
	go func() { done <- h.Start(ctx) }()
	time.Sleep(time.Minute)
	if checks.Load() != 0 {
		t.Error("OnReconnect was called while the agent was disconnected")
	}
	disconnected.Store(false)
	time.Sleep(4 * retryInterval)
	synctest.Wait()
	if n := checks.Load(); n < 3 {
		t.Errorf("OnReconnect was called %d times while it failed", n)
	}
	checkFails.Store(false)
	time.Sleep(retryInterval)
	synctest.Wait()
	before := checks.Load()
	time.Sleep(time.Minute)
	if checks.Load() != before {
		t.Error("OnReconnect was called again after it had succeeded")
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// failure is an error that can be switched on.
type failure struct{ atomic.Bool }

func (f *failure) load() error {
	if f.Load() {
		return errors.New("unavailable")
	}
	return nil
}

func TestReporterWritesWhatChanged(t *testing.T) {
	var writes atomic.Int32
	var usable, known atomic.Bool
	known.Store(true)
	var kubeletFails failure
	c := server(&writes)
	changed := make(chan struct{}, 1)
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		r := &Reporter{
			Client: c, Reader: c, Namespace: "kubevirt", Node: "n", Changed: changed,
			Capabilities:    agentapi.Capabilities{Arch: "amd64", CPUModels: []string{"EPYC"}},
			Devices:         func() (bool, bool, bool) { return known.Load() && usable.Load(), false, known.Load() },
			StaticCPUPolicy: func(context.Context) (bool, error) { return usable.Load(), kubeletFails.load() },
			Realtime:        func() (bool, error) { return usable.Load(), nil },
		}
		go func() { done <- r.Start(ctx) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	read := func() (report agentapi.Capabilities, ok bool) {
		stored := &corev1.ConfigMap{}
		err := c.Get(context.Background(), client.ObjectKey{Namespace: "kubevirt", Name: "virt-handler.n"}, stored)
		return report, err == nil && json.Unmarshal([]byte(stored.Data[agentapi.CapabilitiesKey]), &report) == nil
	}
	stop := start()
	eventually(t, "there is a report", func() bool { _, ok := read(); return ok })
	usable.Store(true)
	changed <- struct{}{}
	eventually(t, "devices are reported", func() bool {
		stored := &corev1.ConfigMap{}
		var report agentapi.Capabilities
		err := c.Get(context.Background(), client.ObjectKey{Namespace: "kubevirt", Name: "virt-handler.n"}, stored)
		return err == nil && json.Unmarshal([]byte(stored.Data[agentapi.CapabilitiesKey]), &report) == nil &&
			report.Devices && report.CPUManager && report.Realtime
	})
	stop()
	if writes.Load() != 2 {
		t.Errorf("%d writes, want 2", writes.Load())
	}
	// An agent that restarts does not write an unchanged report, although it does not know everything yet.
	kubeletFails.Store(true)
	known.Store(false)
	stop = start()
	changed <- struct{}{}
	eventually(t, "the change was processed", func() bool { return len(changed) == 0 })
	stop()
	if writes.Load() != 2 {
		t.Errorf("a restart wrote %d times", writes.Load()-2)
	}
}

func TestRealtimeCapable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sched_rt_runtime_us")
	if got, err := realtimeCapable(path); got || err != nil {
		t.Errorf("a kernel without the setting: %t, %v", got, err)
	}
	for text, want := range map[string]bool{"-1\n": true, "950000\n": false, "": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := realtimeCapable(path); got != want || err != nil {
			t.Errorf("%q: %t, %v", text, got, err)
		}
	}
	if _, err := realtimeCapable(t.TempDir()); err == nil {
		t.Error("no error for a directory")
	}
}

func TestReadTopology(t *testing.T) {
	got, err := ReadTopology("testdata")
	if err != nil {
		t.Fatal(err)
	}
	want := []domain.NUMACellFact{
		{ID: 0, CPUs: []domain.CPUFact{{ID: 0, Siblings: []uint{0, 2}}, {ID: 2, Siblings: []uint{0, 2}}}},
		{ID: 1, CPUs: []domain.CPUFact{{ID: 1, Siblings: []uint{1, 3}}, {ID: 3, Siblings: []uint{3}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := ReadTopology(t.TempDir()); err == nil {
		t.Error("no error for a missing file")
	}
}

func TestSiblings(t *testing.T) {
	for text, want := range map[string][]uint{
		"1":                {1},
		"0-1":              {0, 1},
		"1,65":             {1, 65},
		"":                 {1},
		"2-3":              {1}, // not the CPU's own list
		"1-x":              {1},
		"0-99999999999":    {1}, // 99 billion entries
		"1,99999999999999": {1},
		"1,8192":           {1},
	} {
		if got := siblings(libvirtxml.CapsHostNUMACPU{ID: 1, Siblings: text}); !slices.Equal(got, want) {
			t.Errorf("siblings %q: %v, want %v", text, got, want)
		}
	}
}
