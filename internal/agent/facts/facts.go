// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package facts gathers what domain.Build must know about a node and a launcher Pod.
package facts

import (
	"cmp"
	"context"
	"maps"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
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
	// Logical is the smallest unit of a request, Physical that of the storage itself, and Discard the granularity of discards, 0 if
	// there are none.
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

// AddBlockSizes adds the block sizes of disks whose spec requests those of their volumes. It does not access other disks.
func AddBlockSizes(ctx context.Context, vmi *v1.VirtualMachineInstance, files Files, disks map[string]domain.DiskFact) error {
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
