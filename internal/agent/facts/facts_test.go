// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// files is a fake with the files of a Pod.
type files struct{ devices, direct map[string]bool }

func (f files) HasDevice(_ context.Context, path string) bool { return f.devices[path] }

func (f files) DirectIO(_ context.Context, path string) bool { return f.direct[path] }

func (f files) CPUs(context.Context) []uint { return []uint{2, 3} }

func (f files) BlockSizes(_ context.Context, path string) BlockSizes {
	if path != "/a" {
		return BlockSizes{}
	}
	return BlockSizes{Logical: 512, Physical: 4096, Discard: 1024}
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
	AddBlockSizes(context.Background(), vmi, files{}, disks)
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
		},
		KernelBoot: &domain.KernelBootFact{Kernel: "/k"},
	}
	taps := map[string]domain.InterfaceFact{"default": {Tap: "tap0"}}
	node := Node{Arch: "amd64", NUMACells: []domain.NUMACellFact{{ID: 1, CPUs: []domain.CPUFact{{ID: 2}, {ID: 3}}}}}
	got := Collect(context.Background(), config, node,
		files{devices: map[string]bool{"/dev/vhost-net": true}, direct: map[string]bool{"/a": true, "/d": true}}, disks, taps)
	AddBlockSizes(context.Background(), matching("a", "b", "gone"), files{}, got.Disks)
	want := domain.Facts{
		Emulation: true, Arch: "amd64", Interfaces: taps, KernelBoot: disks.KernelBoot, VhostNet: true, CPUs: []uint{2, 3}, NUMACells: node.NUMACells,
		SMBIOS: domain.SMBIOSFact{Manufacturer: "KubeVirt", Product: "None", Family: "KubeVirt"}, MemBalloonStatsPeriod: 10,
		Disks: map[string]domain.DiskFact{
			"a": {Path: "/a", Format: "raw", DirectIO: true, LogicalBlockSize: 512, PhysicalBlockSize: 4096, DiscardGranularity: 1024}, "b": {Path: "/b", Format: "raw"},
			"c":       {Path: "/dev/c", Block: true, DirectIO: true},
			"above a": {Path: "/d", BackingPath: "/a", DirectIO: true}, "above b": {Path: "/d", BackingPath: "/b"},
			"above c": {Path: "/d", BackingPath: "/dev/c", BackingBlock: true, DirectIO: true},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if disks.Disks["a"].DirectIO {
		t.Error("the argument was changed")
	}
}

func TestPodFiles(t *testing.T) {
	dir, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	p := PodFiles{Process: &hypervisor.Process{Dir: dir}}
	ctx := context.Background()
	regular := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(regular, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := regular + ".link"
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/dev/null": true, regular: false, "/nothing": false, link: true} {
		if got := p.HasDevice(ctx, path); got != want {
			t.Errorf("HasDevice(%s) is %v", path, got)
		}
	}
	// Devices are never opened. The result for a regular file depends on its file system.
	for _, path := range []string{"/dev/null", "/nothing", "/"} {
		if p.DirectIO(ctx, path) {
			t.Errorf("DirectIO(%s) is true", path)
		}
	}
}

func TestBlockSizes(t *testing.T) {
	dir, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	p := PodFiles{Process: &hypervisor.Process{Dir: dir}}
	regular := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(regular, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(regular, &fs); err != nil {
		t.Fatal(err)
	}
	size := uint(fs.Bsize)
	if got := p.BlockSizes(context.Background(), regular); got != (BlockSizes{size, size, size}) {
		t.Errorf("got %+v, want %d for all", got, size)
	}
	if got := p.BlockSizes(context.Background(), "/nothing"); got != (BlockSizes{}) {
		t.Errorf("got %+v of nothing", got)
	}
}

func TestDeviceSizes(t *testing.T) {
	sys := t.TempDir()
	queue := filepath.Join(sys, "devices", "vda", "queue")
	partition := filepath.Join(sys, "devices", "vda", "vda1")
	if err := errors.Join(os.MkdirAll(queue, 0o755), os.MkdirAll(partition, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]string{"logical_block_size": "512\n", "physical_block_size": "4096\n", "discard_granularity": "8192\n"} {
		if err := os.WriteFile(filepath.Join(queue, name), []byte(size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for number, target := range map[string]string{"252:0": filepath.Dir(queue), "252:1": partition} {
		if err := os.Symlink(target, filepath.Join(sys, number)); err != nil {
			t.Fatal(err)
		}
	}
	for minor, want := range map[uint32]BlockSizes{0: {512, 4096, 8192}, 1: {512, 4096, 8192}, 2: {}} {
		if got := deviceSizes(sys, 252, minor); got != want {
			t.Errorf("252:%d: got %+v, want %+v", minor, got, want)
		}
	}
}

func TestClaim(t *testing.T) {
	const minor = 232
	for _, tc := range []struct {
		name  string
		mode  uint32
		minor uint32
		owner uint32
		// onNode makes the Pod's device file the node's.
		onNode  bool
		refused bool
		// assigned is the dynamic minor number of the node's device, if it has one.
		assigned uint32
	}{
		{name: "a device of root", mode: 0o600, minor: minor, owner: launcherpod.QEMUUser},
		{name: "a device for all", mode: 0o666, minor: minor},
		{name: "another device with the name", mode: 0o600, minor: 3},
		{name: "the node's own", mode: 0o600, minor: minor, onNode: true, refused: true},
		{name: "a dynamic minor number", mode: 0o600, minor: 257, owner: launcherpod.QEMUUser, assigned: 257},
		{name: "another dynamic minor number", mode: 0o600, minor: 256, assigned: 257},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "device")
			if err := unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(miscMajor, tc.minor))); err != nil {
				t.Skipf("needs to be root to make device files: %v", err)
			}
			if err := unix.Chmod(path, tc.mode); err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Open(path, unix.O_PATH, 0)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), path)
			defer func() { _ = f.Close() }()
			node := path + "-of-the-node"
			if tc.onNode {
				node = path
			}
			wanted := uint32(minor)
			if tc.assigned != 0 {
				wanted = dynamicMinor
				if err := unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(miscMajor, tc.assigned))); err != nil {
					t.Fatal(err)
				}
			}
			if err := ownDevice(f, wanted, node); (err != nil) != tc.refused {
				t.Fatal(err)
			}
			var stat unix.Stat_t
			if err := unix.Stat(path, &stat); err != nil || stat.Uid != tc.owner {
				t.Errorf("belongs to %d (%v), want %d", stat.Uid, err, tc.owner)
			}
		})
	}
}
