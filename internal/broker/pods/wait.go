// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// The interval between checks for a socket grows with the time that its Pod takes, of which it delays the guest by half a percent at most. A
// check takes a few microseconds. Notifications of the kernel would need an instance of inotify, of which all of a node's processes of root
// share 128, and the watched directories do not exist before the Pod starts.
const (
	minInterval     = 5 * time.Millisecond
	maxInterval     = time.Second
	checksPerPeriod = 200
)

// waitForSocket returns when one of a Pod's sockets exists. The kubelet may not have created the Pod's directories yet.
func waitForSocket(ctx context.Context, podsDir, pod, name string) error {
	for start := time.Now(); ; {
		socket, err := openSocket(podsDir, pod, name)
		if err == nil {
			return socket.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(max(time.Since(start)/checksPerPeriod, minInterval), maxInterval)):
		}
	}
}
