// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"hash/crc32"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/fairqueue"
	"github.com/vireo-project/vireo/internal/agent/hanging"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

const (
	// sumBuffer is how much of a file is read at once. The context is checked between two reads.
	sumBuffer = 4 << 20
	// readTimeout is the time after which a read no longer blocks others. Storage may hang.
	readTimeout = 10 * time.Second
)

// imageReads limits the node to one read of an image at a time. Images of several guests are read alternately, buffer by buffer.
var imageReads = fairqueue.New(1)

// Opener opens files of launcher Pods.
type Opener interface {
	// OpenFile opens a regular file for reading by its path in a directory where an image is mounted in the Pod.
	OpenFile(ctx context.Context, pod types.UID, mount, name string) (*os.File, error)
}

// Sum reads a regular file on the file system that is mounted at a directory of the Pod. It returns the file's size in bytes and
// its CRC-32 (IEEE), which was KubeVirt's checksum of an image (pkg/virt-handler/container-disk). It returns when its context is
// done, even if a read hangs. Reads are queued fairly by namespace.
func Sum(ctx context.Context, files Opener, pod hypervisor.PodRef, mount, name string) (size int64, crc uint32, err error) {
	f, err := files.OpenFile(ctx, pod.UID, mount, name)
	if err != nil {
		return 0, 0, err
	}
	type result struct {
		size int64
		crc  uint32
	}
	found := make(chan result, 1)
	err = hanging.Do(ctx, pod.UID, f, func() error {
		sum := crc32.NewIEEE()
		from := queuedReader{ctx: ctx, namespace: pod.VMI.Namespace, queue: imageReads, timeout: readTimeout, from: f}
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

// queuedReader queues each read, until its context is done.
type queuedReader struct {
	ctx       context.Context // of the one call that reads
	namespace string
	queue     *fairqueue.Queue
	timeout   time.Duration
	from      io.Reader
}

// Read reads once the queue allows it. A read that takes longer than the timeout no longer blocks others.
func (r queuedReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	release, err := r.queue.Acquire(r.ctx, r.namespace, 1)
	if err != nil {
		return 0, err
	}
	defer release()
	defer time.AfterFunc(r.timeout, release).Stop()
	return r.from.Read(b)
}
