// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/vireo-project/vireo/hack/cluster/internal/process"
)

// poolBytes is the size of the pool's file. It is sparse: it only uses the space of what volumes contain.
const poolBytes = 1 << 40

// mountPool mounts the filesystem of the CSI driver's volumes. It is XFS, which can clone files, in a file that may be
// on any filesystem. Nodes are created later, and inherit the mount.
func (m *Machine) mountPool(ctx context.Context, o Options) error {
	if o.CSIDriver == "" {
		return nil
	}
	mounts, err := mountsBelow(m.layout.Root)
	if err != nil || slices.Contains(mounts, m.layout.Volumes()) {
		return err
	}
	if _, err := os.Stat(m.layout.Pool()); errors.Is(err, fs.ErrNotExist) {
		if err := m.makePool(ctx); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(m.layout.Volumes(), 0o755); err != nil {
		return fmt.Errorf("make the mount point of the volumes: %w", err)
	}
	_, err = process.Run(ctx, "mount", "-t", "xfs", "-o", "loop", m.layout.Pool(), m.layout.Volumes())
	return err
}

func (m *Machine) makePool(ctx context.Context) error {
	half := m.layout.Pool() + ".new"
	if err := os.WriteFile(half, nil, 0o600); err != nil {
		return fmt.Errorf("make the pool: %w", err)
	}
	if err := os.Truncate(half, poolBytes); err != nil {
		return fmt.Errorf("size the pool: %w", err)
	}
	if _, err := process.Run(ctx, "mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1", "-l", "size=64m", half); err != nil {
		return err
	}
	if err := os.Rename(half, m.layout.Pool()); err != nil {
		return fmt.Errorf("make the pool: %w", err)
	}
	return nil
}
