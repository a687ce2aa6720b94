// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// waitForSocket returns when a Pod's libvirt socket is there. The Pod may be so new that the kubelet has not made
// its directories, so the wait goes down the path step by step, each by event.
func waitForSocket(ctx context.Context, podsDir string, uid types.UID) error {
	rel, err := socketsDir(uid)
	if err != nil {
		return err
	}
	steps := strings.Split(filepath.Join(rel, launcherpod.LibvirtSocketName), "/")
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for the libvirt socket of Pod %s: %w", uid, err)
	}
	defer func() { _ = watcher.Close() }()

	watched := -1
	for {
		dir, depth, err := deepest(podsDir, steps)
		if err != nil {
			return err
		}
		if depth == len(steps) {
			_ = dir.Close()
			return nil
		}
		if depth == watched {
			// Nothing came between the watch and this look: from here on an event tells.
			_ = dir.Close()
			if err := nextEvent(ctx, watcher); err != nil {
				return err
			}
			watched = -1
			continue
		}
		for _, old := range watcher.WatchList() {
			// It may be gone with its directory.
			_ = watcher.Remove(old)
		}
		err = watcher.Add(throughFD(dir))
		_ = dir.Close()
		if err != nil {
			return fmt.Errorf("watch for the libvirt socket of Pod %s: %w", uid, err)
		}
		watched = depth
	}
}

// deepest opens the last of the steps below root that exists and says how many exist.
func deepest(root string, steps []string) (*os.File, int, error) {
	dir, err := openDir(root)
	if err != nil {
		return nil, 0, err
	}
	for i, step := range steps {
		next, err := openBeneath(dir, step)
		if errors.Is(err, fs.ErrNotExist) {
			return dir, i, nil
		}
		_ = dir.Close()
		if err != nil {
			return nil, 0, err
		}
		dir = next
	}
	return dir, len(steps), nil
}

func nextEvent(ctx context.Context, watcher *fsnotify.Watcher) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-watcher.Errors:
		// An overflow lost events, the next look finds out.
		if errors.Is(err, fsnotify.ErrEventOverflow) {
			return nil
		}
		return err
	case <-watcher.Events:
		return nil
	}
}
