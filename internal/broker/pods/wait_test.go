// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func watches(t *testing.T) *dirWatches {
	t.Helper()
	w, err := newDirWatches()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func TestWaitForSocketFollowsTheKubelet(t *testing.T) {
	pods := t.TempDir()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { done <- waitForSocket(ctx, watches(t), pods, podUID, launcherpod.LibvirtSocketName) }()
	dir := pods
	for step := range strings.SplitSeq(socketsDir(podUID), "/") {
		dir = filepath.Join(dir, step)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		// Another entry in the directory does not end the wait.
		if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("ended without a socket: %v", err)
	default:
	}
	listen(t, filepath.Join(dir, launcherpod.LibvirtSocketName))
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the socket was not noticed")
	}
}

func TestWaitForSocketEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- waitForSocket(ctx, watches(t), t.TempDir(), podUID, launcherpod.LibvirtSocketName) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Waits for all Pods share one inotify instance.
func TestManyWaitsUseOneInotifyInstance(t *testing.T) {
	before := inotifyInstances(t)
	p, _ := newPods(t, self)
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	const pods = 40
	for i := range pods {
		waits.Go(func() { _ = p.Wait(ctx, fmt.Sprintf("pod-%d", i), launcherpod.LibvirtSocketName) })
	}
	waiting := func() int {
		p.watches.mu.Lock()
		defer p.watches.mu.Unlock()
		total := 0
		for _, w := range p.watches.waiting {
			total += len(w)
		}
		return total
	}
	for deadline := time.Now().Add(patience); waiting() < pods; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d Pods are waited for", waiting(), pods)
		}
		<-time.After(time.Millisecond)
	}
	if now := inotifyInstances(t); now != before+1 {
		t.Errorf("%d inotify instances for %d Pods", now-before, pods)
	}
	cancel()
	waits.Wait()
	if left := waiting(); left != 0 {
		t.Errorf("%d watches are left", left)
	}
}

// inotifyInstances returns the number of inotify instances of this process.
func inotifyInstances(t *testing.T) int {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "anon_inode:inotify" {
			count++
		}
	}
	return count
}
