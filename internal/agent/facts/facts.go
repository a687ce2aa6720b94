// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package facts gathers what domain.Build must know about a node and a launcher Pod.
package facts

import (
	"cmp"
	"context"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/limits"
)

// vhostNet is the device with which QEMU offloads a guest's network traffic to the kernel.
const vhostNet = "/dev/vhost-net"

// Files inspects files of the launcher Pod. An error means that they cannot be inspected now.
type Files interface {
	// HasDevice reports whether the Pod has a character device at a path.
	HasDevice(ctx context.Context, path string) (bool, error)
	// DirectIO reports whether a file of the Pod can be opened with O_DIRECT.
	DirectIO(ctx context.Context, path string) (bool, error)
	// CPUs returns the CPUs on which the Pod may run.
	CPUs(ctx context.Context) ([]uint, error)
	// BlockSizes returns the block sizes of a device or of a file's file system; zeros if they are not known.
	BlockSizes(ctx context.Context, path string) (BlockSizes, error)
}

// Node has the facts about the agent's node.
type Node struct {
	// Arch is the architecture as Kubernetes names it.
	Arch string
	// NUMACells are its NUMA cells with their CPUs.
	NUMACells []domain.NUMACellFact
}

// BlockSizes are sizes in bytes.
type BlockSizes struct {
	// Logical is the smallest unit of a request, Physical that of the storage itself, and Discard the granularity of
	// discards, 0 if there are none.
	Logical, Physical, Discard uint
}

// Collect returns the facts of earlier steps and of the Pod's files.
func Collect(
	ctx context.Context, config clusterconfig.Config, node Node, files Files, disks *media.Result,
	interfaces map[string]domain.InterfaceFact,
) (domain.Facts, error) {
	hasVhostNet, err := files.HasDevice(ctx, vhostNet)
	if err != nil {
		return domain.Facts{}, err
	}
	cpus, err := files.CPUs(ctx)
	if err != nil {
		return domain.Facts{}, err
	}
	facts := domain.Facts{
		Emulation:             config.UseEmulation,
		Arch:                  node.Arch,
		Disks:                 maps.Clone(disks.Disks),
		Interfaces:            interfaces,
		KernelBoot:            disks.KernelBoot,
		ACPI:                  disks.ACPI,
		SMBIOS:                domain.SMBIOSFact(config.SMBIOS),
		MemBalloonStatsPeriod: uint(config.MemBalloonStatsPeriod),
		VhostNet:              hasVhostNet,
		CPUs:                  cpus,
		NUMACells:             node.NUMACells,
	}
	for name, disk := range facts.Disks {
		if disk.DirectIO, err = directIO(ctx, files, disk); err != nil {
			return domain.Facts{}, err
		}
		facts.Disks[name] = disk
	}
	return facts, nil
}

// directIO reports whether QEMU can open a disk, and the image or the device below it, with O_DIRECT.
func directIO(ctx context.Context, files Files, disk domain.DiskFact) (bool, error) {
	can, err := disk.Block, error(nil)
	if !can {
		can, err = files.DirectIO(ctx, disk.Path)
	}
	below, block := disk.BackingPath, disk.BackingBlock
	if disk.DataPath != "" {
		below, block = disk.DataPath, disk.DataBlock
	}
	if !can || err != nil || below == "" || block {
		return can, err
	}
	return files.DirectIO(ctx, below)
}

// AddBlockSizes adds the block sizes of disks whose spec requests those of their volumes. It does not access other
// disks.
func AddBlockSizes(
	ctx context.Context, vmi *v1.VirtualMachineInstance, files Files, disks map[string]domain.DiskFact,
) error {
	for i := range vmi.Spec.Domain.Devices.Disks {
		spec := &vmi.Spec.Domain.Devices.Disks[i]
		disk, found := disks[spec.Name]
		if !found || !domain.MatchesVolume(spec) {
			continue
		}
		sizes, err := files.BlockSizes(ctx, cmp.Or(disk.DataPath, disk.Path))
		if err != nil {
			return err
		}
		disk.LogicalBlockSize, disk.PhysicalBlockSize, disk.DiscardGranularity = sizes.Logical, sizes.Physical, sizes.Discard
		disks[spec.Name] = disk
	}
	return nil
}

const (
	// sumBuffer is how much of a file is read at once. The context is checked between two reads.
	sumBuffer = 4 << 20
	// readTimeout is the time after which a read no longer blocks others. Storage may hang.
	readTimeout = 10 * time.Second
)

// imageReads limits the node to one read of an image at a time. Images of several guests are read alternately, buffer
// by buffer.
var imageReads = limits.NewQueue(1)

// Opener opens files of launcher Pods.
type Opener interface {
	// OpenFile opens a regular file for reading by its path in a directory where an image is mounted in the Pod.
	OpenFile(ctx context.Context, pod types.UID, mount, name string) (*os.File, error)
}

// Sum reads a regular file on the file system that is mounted at a directory of the Pod. It returns the file's size in
// bytes and its CRC-32 (IEEE), which was KubeVirt's checksum of an image (pkg/virt-handler/container-disk). It returns
// when its context is done, even if a read hangs. Reads are queued fairly by namespace.
func Sum(
	ctx context.Context, files Opener, pod hypervisor.PodRef, mount, name string,
) (size int64, crc uint32, err error) {
	f, err := files.OpenFile(ctx, pod.UID, mount, name)
	if err != nil {
		return 0, 0, err
	}
	type result struct {
		size int64
		crc  uint32
	}
	found := make(chan result, 1)
	err = limits.Access(ctx, pod.UID, f, func() error {
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
	queue     *limits.Queue
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
