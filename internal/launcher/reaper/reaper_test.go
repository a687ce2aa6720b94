// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reaper

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newReaper(t *testing.T) *Reaper {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := New()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended // Two at once would take each other's children.
	})
	return r
}

func run(t *testing.T, r *Reaper, script string, out *os.File) *Child {
	t.Helper()
	child, err := r.Start([]string{"/bin/sh", "-c", script}, &os.ProcAttr{Files: []*os.File{nil, out, os.Stderr}})
	if err != nil {
		t.Fatal(err)
	}
	return child
}

func TestStatusOfChildren(t *testing.T) {
	r := newReaper(t)
	children := map[string]*Child{
		"exited with code 0":           run(t, r, "exit 0", nil),
		"exited with code 7":           run(t, r, "exit 7", nil),
		"killed by signal 9 (SIGKILL)": run(t, r, "kill -9 $$", nil),
	}
	for want, child := range children {
		<-child.Done()
		if got := Describe(child.Status()); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if err := child.Signal(unix.SIGTERM); err != nil {
			t.Errorf("a signal to a child that ended: %v", err)
		}
	}
}

// The parent of a daemon exits, and the daemon becomes a child of the reaper, like QEMU of PID 1.
func TestAdoptedChildrenAreReaped(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	r := newReaper(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child := run(t, r, "sh -c 'echo $$; exit 5' &", writer)
	_ = writer.Close()
	buf := make([]byte, 32)
	n, err := reader.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	<-child.Done()
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if status, ok := r.Status(pid); ok {
			if status.ExitStatus() != 5 {
				t.Errorf("the status is: %s", Describe(status))
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon is not reaped")
		}
	}
}

func TestStatusesAreBounded(t *testing.T) {
	r := New()
	for pid := range 10 * maxStatuses {
		r.remember(pid, 0)
	}
	if len(r.adopted) != maxStatuses || len(r.order) != maxStatuses {
		t.Errorf("%d and %d statuses are kept", len(r.adopted), len(r.order))
	}
}

func TestStartFails(t *testing.T) {
	if _, err := newReaper(t).Start([]string{"/nonexistent"}, &os.ProcAttr{}); err == nil {
		t.Error("nothing was started")
	}
}
