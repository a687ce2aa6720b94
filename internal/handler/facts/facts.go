// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package facts gathers what domain.Build must know about a node and a launcher Pod.
package facts

import (
	"context"
	"maps"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/media"
)

// vhostNet is the device by which QEMU lets the kernel move a guest's packets.
const vhostNet = "/dev/vhost-net"

// Files looks at files of the launcher Pod without changing them.
type Files interface {
	// HasDevice says that the Pod has a character device at a path.
	HasDevice(ctx context.Context, path string) bool
	// DirectIO says that a file of the Pod can be opened past the page cache.
	DirectIO(ctx context.Context, path string) bool
	// CPUs are those of the node that the Pod may run on.
	CPUs(ctx context.Context) []uint
	// BlockSizes are those of a device or of the file system below a file; zeros if they are not known.
	BlockSizes(ctx context.Context, path string) BlockSizes
}

// Node is what the agent knows about its node.
type Node struct {
	// Arch is the architecture as Kubernetes names it.
	Arch string
	// NUMACells are its CPUs by what they share.
	NUMACells []domain.NUMACellFact
}

// BlockSizes are sizes in bytes.
type BlockSizes struct {
	// Logical is the least that can be read, Physical what the storage reads at once, Discard the least that can be given
	// back, or 0 if nothing can.
	Logical, Physical, Discard uint
}

// Collect puts together what the earlier steps found out.
func Collect(
	ctx context.Context, config clusterconfig.Config, node Node, files Files, disks *media.Result,
	interfaces map[string]domain.InterfaceFact,
) domain.Facts {
	facts := domain.Facts{
		Emulation:             config.UseEmulation,
		Arch:                  node.Arch,
		Disks:                 maps.Clone(disks.Disks),
		Interfaces:            interfaces,
		KernelBoot:            disks.KernelBoot,
		ACPI:                  disks.ACPI,
		SMBIOS:                domain.SMBIOSFact(config.SMBIOS),
		MemBalloonStatsPeriod: uint(config.MemBalloonStatsPeriod),
		VhostNet:              files.HasDevice(ctx, vhostNet),
		CPUs:                  files.CPUs(ctx),
		NUMACells:             node.NUMACells,
	}
	for name, disk := range facts.Disks {
		disk.DirectIO = (disk.Block || files.DirectIO(ctx, disk.Path)) &&
			(disk.BackingPath == "" || disk.BackingBlock || files.DirectIO(ctx, disk.BackingPath))
		facts.Disks[name] = disk
	}
	return facts
}

// AddBlockSizes completes the facts of the disks that take the block sizes of their volumes. Nobody looks at the storage of
// the others for it.
func AddBlockSizes(ctx context.Context, vmi *v1.VirtualMachineInstance, files Files, disks map[string]domain.DiskFact) {
	for i := range vmi.Spec.Domain.Devices.Disks {
		spec := &vmi.Spec.Domain.Devices.Disks[i]
		disk, found := disks[spec.Name]
		if !found || !domain.MatchesVolume(spec) {
			continue
		}
		sizes := files.BlockSizes(ctx, disk.Path)
		disk.LogicalBlockSize, disk.PhysicalBlockSize, disk.DiscardGranularity = sizes.Logical, sizes.Physical, sizes.Discard
		disks[spec.Name] = disk
	}
}
