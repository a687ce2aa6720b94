// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"io"

	"github.com/vireo-project/vireo/internal/agent/hanging"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// ReadTracked calls read with the overlay of a disk, a file in launcherpod.TrackedDisksDir, and returns its error. The file may have any
// content, and read may still run when the context is done.
func (c *Conn) ReadTracked(ctx context.Context, name string, read func(io.ReaderAt) error) error {
	f, err := c.options.Broker.OpenFile(ctx, c.pod.UID, launcherpod.TrackedDisksDir, name)
	if err == nil {
		err = hanging.Do(ctx, c.pod.UID, f, func() error { return read(f) })
	}
	if err != nil {
		return fmt.Errorf("read the overlay %s: %w", name, err)
	}
	return nil
}
