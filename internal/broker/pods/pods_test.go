// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

func TestWaitForSocketFollowsTheKubelet(t *testing.T) {
	pods := t.TempDir()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { done <- New(pods, nil).Wait(ctx, podUID, layout.LibvirtSocketName) }()
	dir := pods
	for step := range strings.SplitSeq(podUID+"/"+socketsDir, "/") {
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
	listen(t, filepath.Join(dir, layout.LibvirtSocketName))
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
	go func() { done <- New(t.TempDir(), nil).Wait(ctx, podUID, layout.LibvirtSocketName) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
