// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"
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
	var cpus []int
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	if want, got := cpuset.New(cpus...), allowedCPUs(self(t)); !got.Equals(want) {
		t.Errorf("%s, want %s", got, want)
	}
	nowhere, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nowhere.Close() }()
	if got := allowedCPUs(nowhere); !got.IsEmpty() {
		t.Errorf("a process that is gone runs on %v", got)
	}
}

// vcpuThread starts a thread with the name of a vCPU thread.
func vcpuThread(t *testing.T, name string) int {
	t.Helper()
	ready, done := make(chan int), make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread exits with the goroutine.
		name := append([]byte(name), 0)
		if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
			t.Error(err)
		}
		ready <- unix.Gettid()
		<-done
	}()
	return <-ready
}

func policyOf(t *testing.T, tid int) unix.SchedAttr {
	t.Helper()
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return *attr
}

func TestRealtime(t *testing.T) {
	tid := vcpuThread(t, "CPU 7/TCG")
	own, before := allowedCPUs(self(t)), policyOf(t, tid)
	for what, c := range map[string]struct {
		vcpus     []uint
		exclusive cpuset.CPUSet
	}{
		"CPUs of others":          {[]uint{7}, cpuset.New(1023)},
		"some CPUs of others":     {[]uint{7}, cpuset.New(append([]int{1023}, own.List()[1:]...)...)},
		"a vCPU without priority": {[]uint{6}, own},
	} {
		done := map[uint]bool{}
		if err := setVCPUs(self(t), c.vcpus, c.exclusive, done); err != nil || len(done) > 0 {
			t.Errorf("%s: %v, %v", what, done, err)
		}
		if attr := policyOf(t, tid); attr.Policy != before.Policy {
			t.Errorf("%s: the thread has %+v", what, attr)
		}
	}
	done := map[uint]bool{}
	if err := setVCPUs(self(t), []uint{7}, own, done); errors.Is(err, unix.EPERM) {
		t.Skip("needs to be allowed to set priorities")
	} else if err != nil || !done[7] {
		t.Fatalf("%v, %v", done, err)
	}
	attr := policyOf(t, tid)
	if attr.Policy != unix.SCHED_FIFO || attr.Priority != 1 || attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
		t.Errorf("the thread has %+v", attr)
	}
	if err := unsetRealtime(tid); err != nil || policyOf(t, tid).Policy != unix.SCHED_NORMAL {
		t.Errorf("it keeps its priority: %v", err)
	}
}

// A tid may have been reused for another realtime thread.
func TestUnsetRealtimeKeepsOtherPriorities(t *testing.T) {
	tid := vcpuThread(t, "other")
	err := unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 2}, 0)
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs to be allowed to set priorities")
	}
	if err := errors.Join(err, unsetRealtime(tid)); err != nil || policyOf(t, tid).Policy != unix.SCHED_FIFO {
		t.Errorf("it lost its priority: %v", err)
	}
	const none = 1<<22 - 1 // the highest possible tid
	if err := unsetRealtime(none); err != nil {
		t.Error(err)
	}
}

func TestRealtimeNeedsExclusiveCPUs(t *testing.T) {
	err := prioritize(self(t), []uint{0}, cpuset.New())
	if err == nil || !strings.Contains(err.Error(), "no exclusive CPUs") {
		t.Errorf("got %v", err)
	}
}

func TestRealtimeStaysInThePod(t *testing.T) {
	// The process is in the broker's own namespace, which has all processes of the node.
	err := prioritize(self(t), []uint{0}, cpuset.New(0))
	if err == nil || !strings.Contains(err.Error(), "namespace of its own") {
		t.Errorf("got %v", err)
	}
}
