// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"hash/crc32"
	"io"

	"github.com/vireo-project/vireo/internal/handler/podprocess"
)

// sumBuffer is how much of a file is read at once. A context that has ended is noticed between two reads.
const sumBuffer = 1 << 20

// Sum reads a regular file on the file system that is mounted at a directory of the Pod. It returns the file's size in bytes and
// its CRC-32 (IEEE), which is KubeVirt's checksum of an image (pkg/virt-handler/container-disk).
func (p PodFiles) Sum(ctx context.Context, mount, name string) (size int64, crc uint32, err error) {
	root, err := podprocess.OpenRoot(p.Process.Dir)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenRegular(mount, name)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }()
	sum := crc32.NewIEEE()
	size, err = io.CopyBuffer(struct{ io.Writer }{sum}, untilDone{ctx: ctx, from: f}, make([]byte, sumBuffer))
	return size, sum.Sum32(), err
}

// untilDone reads until its context ends.
type untilDone struct {
	ctx  context.Context //nolint:containedctx // that of the one call that reads
	from io.Reader
}

// Read reads.
func (r untilDone) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(b)
}
