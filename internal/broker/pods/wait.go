// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// checkInterval and checkBurst limit how often the broker checks for a Pod's socket while the Pod creates files in its volume.
const (
	checkInterval = 100 * time.Millisecond
	checkBurst    = 50
)

// waitForSocket returns when one of a Pod's sockets exists. The kubelet may not have created the Pod's directories yet, so it
// watches the deepest existing directory of the path.
func waitForSocket(ctx context.Context, watches *dirWatches, podsDir, pod, name string) error {
	if err := CheckUID(pod); err != nil {
		return err
	}
	steps := strings.Split(filepath.Join(socketsDir(pod), name), "/")
	checks := rate.NewLimiter(rate.Every(checkInterval), checkBurst)
	for {
		if err := checks.Wait(ctx); err != nil {
			return err
		}
		dir, depth, err := deepest(podsDir, steps)
		if err != nil {
			return err
		}
		if depth == len(steps) {
			_ = dir.Close()
			return nil
		}
		changed, stop, err := watches.add(dir)
		_ = dir.Close()
		if err != nil {
			return fmt.Errorf("watch for the socket %s of Pod %s: %w", name, pod, err)
		}
		err = untilDeeper(ctx, podsDir, steps, depth, changed)
		stop()
		if err != nil {
			return err
		}
	}
}

// untilDeeper returns when more of the path may exist.
func untilDeeper(ctx context.Context, podsDir string, steps []string, depth int, changed <-chan struct{}) error {
	dir, now, err := deepest(podsDir, steps)
	if err != nil {
		return err
	}
	_ = dir.Close()
	if now != depth {
		// It was created between the check and the watch.
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
		return nil
	}
}

// deepest opens the deepest of the steps below root that exists and returns how many exist.
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
