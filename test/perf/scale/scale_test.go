// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/cmd/virt-controller/manager"
)

// Writes of two of our processes, the two stages of a watch, a read, a Lease, a Node's heartbeat, and the writes of two
// others.
const auditLines = `{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:kubevirt:kubevirt-controller"},"objectRef":{"resource":"virtualmachines","subresource":"status"}}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"admin"},"impersonatedUser":{"username":"system:serviceaccount:kubevirt:kubevirt-handler"},"objectRef":{"resource":"virtualmachineinstances","subresource":"status"}}
{"stage":"ResponseStarted","verb":"watch","user":{"username":"system:serviceaccount:kubevirt:kubevirt-controller"},"objectRef":{"resource":"pods"}}
{"stage":"ResponseComplete","verb":"watch","user":{"username":"system:serviceaccount:kubevirt:kubevirt-controller"},"objectRef":{"resource":"pods"}}
{"stage":"ResponseComplete","verb":"list","user":{"username":"system:serviceaccount:kubevirt:kubevirt-controller"},"objectRef":{"resource":"pods"}}
{"stage":"ResponseComplete","verb":"update","user":{"username":"system:serviceaccount:kubevirt:kubevirt-controller"},"objectRef":{"resource":"leases"}}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:kubevirt:kubevirt-controller"},"objectRef":{"resource":"nodes"}}
{"stage":"ResponseComplete","verb":"create","user":{"username":"admin"},"userAgent":"kube-scheduler/v1 (linux)","objectRef":{"resource":"pods","subresource":"binding"}}
{"stage":"ResponseComplete","verb":"create","user":{"username":"admin"},"userAgent":"scale/v0","objectRef":{"resource":"virtualmachines"}}
`

func TestVirtControllerHasTheFlagsOfTheBenchmark(t *testing.T) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	(&manager.Options{}).BindFlags(flags)
	if err := flags.Parse(controllerArguments(1, 2, 3)); err != nil {
		t.Error(err)
	}
}

func TestRequestsAreCountedByProcess(t *testing.T) {
	log := &auditLog{file: filepath.Join(t.TempDir(), "audit.log"), counts: map[request]int{}}
	if err := os.WriteFile(log.file, []byte(auditLines+`{"stage":`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- log.follow(ctx) }()
	const kinds = 8
	for len(log.snapshot()) < kinds {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p := &phase{Requests: map[string]map[string]int{}, Writes: map[string]int{}}
	p.addRequests(&state{}, &state{requests: log.snapshot()})
	if diff := cmp.Diff(map[string]int{controllerName: 1, agentsName: 1, schedulerName: 1, benchmarkName: 1},
		p.Writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	want := map[string]int{"patch virtualmachines/status": 1, "watch pods": 1, "list pods": 1, "update leases": 1,
		"patch nodes": 1}
	if diff := cmp.Diff(want, p.Requests[controllerName]); diff != "" {
		t.Errorf("requests of virt-controller (-want +got):\n%s", diff)
	}
	if log.quietSince().IsZero() {
		t.Error("the time of our last write is not known")
	}
}

func TestUsageOfAProcess(t *testing.T) {
	self := &process{pid: os.Getpid()}
	before, err := self.usage()
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64*mebibyte)
	for i := range block {
		block[i] = 1
	}
	after, err := self.usage()
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.peak - before.resident; grown < int64(len(block))/2 {
		t.Errorf("the peak has grown by %d bytes after %d were allocated", grown, len(block))
	}
	if after.cpu < before.cpu {
		t.Errorf("the CPU time has gone from %s to %s", before.cpu, after.cpu)
	}
}
