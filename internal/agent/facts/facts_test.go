// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
)

// files is a fake with the files of a Pod.
type files struct {
	devices, direct map[string]bool
	err             error
}

func (f files) HasDevice(_ context.Context, path string) (bool, error) { return f.devices[path], f.err }

func (f files) DirectIO(_ context.Context, path string) (bool, error) { return f.direct[path], f.err }

func (f files) CPUs(context.Context) ([]uint, error) { return []uint{2, 3}, f.err }

func (f files) BlockSizes(_ context.Context, path string) (BlockSizes, error) {
	if path != "/a" {
		return BlockSizes{}, f.err
	}
	return BlockSizes{Logical: 512, Physical: 4096, Discard: 1024}, f.err
}

// matching returns a VMI whose disks request the block sizes of their volumes.
func matching(disks ...string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	for _, name := range disks {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
			v1.Disk{Name: name, BlockSize: &v1.BlockSize{MatchVolume: &v1.FeatureState{}}})
	}
	return vmi
}

func TestAddBlockSizes(t *testing.T) {
	vmi := matching("requests")
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: "does not"})
	disks := map[string]domain.DiskFact{"requests": {Path: "/a"}, "does not": {Path: "/a"}}
	if err := AddBlockSizes(context.Background(), vmi, files{}, disks); err != nil {
		t.Fatal(err)
	}
	want := map[string]domain.DiskFact{
		"requests": {Path: "/a", LogicalBlockSize: 512, PhysicalBlockSize: 4096, DiscardGranularity: 1024},
		"does not": {Path: "/a"},
	}
	if diff := cmp.Diff(want, disks); diff != "" {
		t.Error(diff)
	}
}

func TestCollect(t *testing.T) {
	config := clusterconfig.Default()
	config.UseEmulation = true
	disks := &media.Result{
		Disks: map[string]domain.DiskFact{
			"a": {Path: "/a", Format: "raw"}, "b": {Path: "/b", Format: "raw"}, "c": {Path: "/dev/c", Block: true},
			// QEMU opens a backing file with the same flags as the overlay.
			"above a": {Path: "/d", BackingPath: "/a"}, "above b": {Path: "/d", BackingPath: "/b"},
			"above c": {Path: "/d", BackingPath: "/dev/c", BackingBlock: true},
			// Nor does it cache the overlay of a disk whose blocks are tracked, nor the data.
			"tracks a": {Path: "/d", DataPath: "/a"}, "tracks b": {Path: "/d", DataPath: "/b"},
			"tracks c": {Path: "/d", DataPath: "/dev/c", DataBlock: true}, "cached overlay of a": {Path: "/b", DataPath: "/a"},
		},
		KernelBoot: &domain.KernelBootFact{Kernel: "/k"},
	}
	taps := map[string]domain.InterfaceFact{"default": {Tap: "tap0"}}
	node := Node{Arch: "amd64", NUMACells: []domain.NUMACellFact{{ID: 1, CPUs: []domain.CPUFact{{ID: 2}, {ID: 3}}}}}
	got, err := Collect(context.Background(), config, node,
		files{devices: map[string]bool{"/dev/vhost-net": true}, direct: map[string]bool{"/a": true, "/d": true}}, disks, taps)
	if err := errors.Join(err,
		AddBlockSizes(context.Background(), matching("a", "b", "gone"), files{}, got.Disks)); err != nil {
		t.Fatal(err)
	}
	want := domain.Facts{
		Emulation: true, Arch: "amd64", Interfaces: taps, KernelBoot: disks.KernelBoot, VhostNet: true, CPUs: []uint{2, 3},
		NUMACells:             node.NUMACells,
		SMBIOS:                domain.SMBIOSFact{Manufacturer: "KubeVirt", Product: "None", Family: "KubeVirt"},
		MemBalloonStatsPeriod: 10,
		Disks: map[string]domain.DiskFact{
			"a": {Path: "/a", Format: "raw", DirectIO: true, LogicalBlockSize: 512, PhysicalBlockSize: 4096, DiscardGranularity: 1024}, "b": {Path: "/b", Format: "raw"},
			"c":       {Path: "/dev/c", Block: true, DirectIO: true},
			"above a": {Path: "/d", BackingPath: "/a", DirectIO: true}, "above b": {Path: "/d", BackingPath: "/b"},
			"above c":  {Path: "/d", BackingPath: "/dev/c", BackingBlock: true, DirectIO: true},
			"tracks a": {Path: "/d", DataPath: "/a", DirectIO: true}, "tracks b": {Path: "/d", DataPath: "/b"},
			"tracks c": {Path: "/d", DataPath: "/dev/c", DataBlock: true, DirectIO: true}, "cached overlay of a": {Path: "/b", DataPath: "/a"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if disks.Disks["a"].DirectIO {
		t.Error("the argument was changed")
	}
}

// Facts that cannot be known now must not be guessed.
func TestCollectFails(t *testing.T) {
	gone := errors.New("the broker is gone")
	disks := &media.Result{Disks: map[string]domain.DiskFact{"a": {Path: "/a"}}}
	if _, err := Collect(t.Context(), clusterconfig.Default(), Node{}, files{err: gone}, disks, nil); !errors.Is(err,
		gone) {
		t.Errorf("got %v", err)
	}
	if err := AddBlockSizes(t.Context(), matching("a"), files{err: gone}, disks.Disks); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}
