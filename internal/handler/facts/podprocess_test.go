// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

func self(t *testing.T) *os.File {
	t.Helper()
	dir, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return dir
}

func TestCPUs(t *testing.T) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		t.Fatal(err)
	}
	var want []uint
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			want = append(want, uint(cpu))
		}
	}
	got := PodFiles{Process: &hypervisor.Process{Dir: self(t)}}.CPUs(context.Background())
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	nowhere, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nowhere.Close() }()
	if got := (PodFiles{Process: &hypervisor.Process{Dir: nowhere}}).CPUs(context.Background()); got != nil {
		t.Errorf("a process that is gone runs on %v", got)
	}
}

// TestRealtime stands in for a vCPU with a thread of its own name.
func TestRealtime(t *testing.T) {
	ready, done := make(chan int), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its name and its priority
		name := []byte("CPU 7/TCG\x00")
		if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
			t.Error(err)
		}
		ready <- unix.Gettid()
		<-done
	}()
	tid := <-ready
	threads := map[uint]int{}
	addVCPUs(self(t), threads)
	if diff := cmp.Diff(map[uint]int{7: tid}, threads); diff != "" {
		t.Fatal(diff)
	}
	if err := setRealtime(tid); errors.Is(err, unix.EPERM) {
		t.Skip("needs to be allowed to set priorities")
	} else if err != nil {
		t.Fatal(err)
	}
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil || attr.Policy != unix.SCHED_FIFO || attr.Priority != 1 {
		t.Errorf("the thread has %+v, %v", attr, err)
	}
}

func TestRealtimeStaysInThePod(t *testing.T) {
	// The process is in the agent's own namespace, where every process of the node would be looked at.
	err := PodFiles{Process: &hypervisor.Process{Dir: self(t)}}.SetRealtime(context.Background(), []uint{0})
	if err == nil || !strings.Contains(err.Error(), "namespace of its own") {
		t.Errorf("got %v", err)
	}
}
