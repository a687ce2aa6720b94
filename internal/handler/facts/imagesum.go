// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"hash/crc32"
	"io"
	"time"

	"github.com/vireo-project/vireo/internal/handler/podprocess"
	"github.com/vireo-project/vireo/internal/handler/turns"
)

const (
	// sumBuffer is how much of a file is read at once. A context that has ended is noticed between two reads.
	sumBuffer = 4 << 20
	// readPatience is how long one read keeps others waiting. Storage may hang.
	readPatience = 10 * time.Second
)

// reading is the one image that is read on the node at a time: those of several guests are read in turns, piece by piece.
var reading = turns.New(1)

// Sum reads a regular file on the file system that is mounted at a directory of the Pod. It returns the file's size in bytes and
// its CRC-32 (IEEE), which was KubeVirt's checksum of an image (pkg/virt-handler/container-disk). It returns when its context ends,
// though storage that hangs keeps the read. Namespaces take turns.
func (p PodFiles) Sum(ctx context.Context, namespace, mount, name string) (size int64, crc uint32, err error) {
	root, err := podprocess.OpenRoot(p.Process.Dir)
	if err != nil {
		return 0, 0, err
	}
	type result struct {
		size int64
		crc  uint32
	}
	found := make(chan result, 1)
	err = root.Do(ctx, p.Process.Pod, func(root *podprocess.Root) error {
		f, err := root.OpenRegular(mount, name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		sum := crc32.NewIEEE()
		from := inTurns{ctx: ctx, namespace: namespace, turns: reading, patience: readPatience, from: f}
		size, err := io.CopyBuffer(struct{ io.Writer }{sum}, from, make([]byte, sumBuffer))
		found <- result{size, sum.Sum32()}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	r := <-found
	return r.size, r.crc, nil
}

// inTurns reads in turns with all others, until its context ends.
type inTurns struct {
	ctx       context.Context // that of the one call that reads
	namespace string
	turns     *turns.Turns
	patience  time.Duration
	from      io.Reader
}

// Read reads. What does not come in time keeps nobody else waiting.
func (r inTurns) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	release, err := r.turns.Take(r.ctx, r.namespace, 1)
	if err != nil {
		return 0, err
	}
	defer release()
	defer time.AfterFunc(r.patience, release).Stop()
	return r.from.Read(b)
}
