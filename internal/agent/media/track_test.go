// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// deviceFiles are the files of a Pod with one block device.
type deviceFiles struct {
	bytes  uint64
	cached bool
	err    error
}

func (f deviceFiles) DeviceBytes(_ context.Context, path string) (uint64, error) {
	if path != "/dev/v" {
		return 0, f.err
	}
	return f.bytes, f.err
}

func (f deviceFiles) DirectIO(context.Context, string) (bool, error) { return !f.cached, f.err }

func asDisk(change func(*v1.Disk)) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		disk := v1.Disk{Name: "v", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{}}}
		if change != nil {
			change(&disk)
		}
		vmi.Spec.Domain.Devices.Disks = []v1.Disk{disk}
	}
}

// migratesWith makes the VMI one whose running guest has a disk of this size.
func migratesWith(size int64) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Phase, vmi.Status.VolumeStatus[0].Size = v1.Running, size
	}
}

func withLimitedStorage(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
}

func TestTrack(t *testing.T) {
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	claim.PersistentVolumeClaim.ClaimName = "c"
	image, device := claimOf("1Gi", corev1.PersistentVolumeFilesystem), claimOf("1Gi", corev1.PersistentVolumeBlock)
	const trackedDir = ephemeralDir + "tracked/"
	overFile := func(name string, bytes int64) domain.DiskFact {
		return domain.DiskFact{
			Path: trackedDir + name, Format: "qcow2", DataPath: diskDir + "/disk.img", CapacityBytes: bytes,
		}
	}
	raw := domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 1 << 20}
	for _, tc := range []struct {
		name  string
		vmi   *v1.VirtualMachineInstance
		add   func(*libvirt.Launcher)
		files deviceFiles
		want  domain.DiskFact
	}{
		{name: "a new image", vmi: vmiWith(claim, image, asDisk(nil)), want: overFile("v-1073741824.qcow2", 1<<30)},
		{name: "an image", vmi: vmiWith(claim, image, asDisk(nil)), add: withFile(diskDir, "disk.img", "raw", 1<<20), want: overFile("v-1048576.qcow2", 1<<20)},
		{name: "a device, which is larger than its claim", vmi: vmiWith(claim, device, asDisk(nil)), files: deviceFiles{bytes: 2 << 30},
			want: domain.DiskFact{Path: trackedDir + "v-2147483648.qcow2", Format: "qcow2", DataPath: "/dev/v", DataBlock: true,
				DirectIO: true, CapacityBytes: 2 << 30}},
		{name: "a device of unknown size", vmi: vmiWith(claim, device, asDisk(nil)),
			want: domain.DiskFact{Path: "/dev/v", Block: true, Format: "raw", DirectIO: true, CapacityBytes: 1 << 30}},
		{name: "a hostDisk", vmi: vmiWith(v1.VolumeSource{HostDisk: &v1.HostDisk{
			Path: "/data/x.img", Type: v1.HostDiskExistsOrCreate, Capacity: resource.MustParse("1Mi")}}, asDisk(nil)),
			want: domain.DiskFact{Path: trackedDir + "v-1048576.qcow2", Format: "qcow2", DataPath: diskDir + "/x.img",
				CapacityBytes: 1 << 20}},
		{name: "an image that looks like qcow2", vmi: vmiWith(claim, image, asDisk(nil)), add: withFile(diskDir, "disk.img", "qcow2", 1<<20), want: raw},
		{name: "an image of half a sector", vmi: vmiWith(claim, image, asDisk(nil)), add: withFile(diskDir, "disk.img", "raw", 256),
			want: domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 256}},
		{name: "an image with a bootable ISO", vmi: vmiWith(claim, image, asDisk(nil)), add: withFile(diskDir, "disk.img", "iso", 1<<20),
			want: overFile("v-1048576.qcow2", 1<<20)},
		{name: "an image that is larger than its claim", vmi: vmiWith(claim, image, asDisk(nil)), add: withFile(diskDir, "disk.img", "raw", 1<<40),
			want: domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 1 << 40}},
		{name: "a small overlay in limited ephemeral storage", vmi: vmiWith(claim, image, asDisk(nil), withLimitedStorage), want: overFile("v-1073741824.qcow2", 1<<30)},
		{name: "a large overlay in limited ephemeral storage", vmi: vmiWith(claim, device, asDisk(nil), withLimitedStorage), files: deviceFiles{bytes: 4 << 40},
			want: domain.DiskFact{Path: "/dev/v", Block: true, Format: "raw", DirectIO: true, CapacityBytes: 1 << 30}},
		{name: "without direct I/O", vmi: vmiWith(claim, image, asDisk(nil)), add: withFile(diskDir, "disk.img", "raw", 1<<20),
			files: deviceFiles{cached: true}, want: raw},
		{name: "the target of a migration", vmi: vmiWith(claim, image, asDisk(nil), migratesWith(1<<20)), add: withFile(diskDir, "disk.img", "raw", 1<<20),
			want: overFile("v-1048576.qcow2", 1<<20)},
		{name: "the target of a migration of a part of the image", vmi: vmiWith(claim, image, asDisk(nil), migratesWith(1<<19)),
			add: withFile(diskDir, "disk.img", "raw", 1<<20), want: raw},
		{name: "a read-only disk", vmi: vmiWith(claim, image, asDisk(func(d *v1.Disk) { d.Disk.ReadOnly = true })),
			add: withFile(diskDir, "disk.img", "raw", 1<<20), want: raw},
		{name: "a shareable disk", vmi: vmiWith(claim, image, asDisk(func(d *v1.Disk) { d.Shareable = ptr.To(true) })),
			add: withFile(diskDir, "disk.img", "raw", 1<<20), want: raw},
		{name: "a CD", vmi: vmiWith(claim, image, asCDRom), add: withFile(diskDir, "disk.img", "raw", 1<<20), want: raw},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, launcher := context.Background(), libvirt.NewNode().Launcher("pod")
			if tc.add != nil {
				tc.add(launcher)
			}
			// Twice: Track is idempotent.
			for range 2 {
				result, err := Prepare(ctx, launcher, content{}.write(t), limits, tc.vmi)
				if err == nil {
					err = Track(ctx, launcher, tc.files, tc.vmi, result)
				}
				if err != nil {
					t.Fatal(err)
				}
				got := result.Disks["v"]
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Error(diff)
				}
				if got.DataPath == "" {
					continue
				}
				overlaid, _, err := overlay.Overlay{DiskBytes: uint64(got.CapacityBytes), DataFile: got.DataPath}.Open()
				if err != nil {
					t.Fatal(err)
				}
				want, err := io.ReadAll(overlaid)
				if err != nil || !bytes.Equal(want, launcher.Content(got.Path[len(trackedDir):])) {
					t.Errorf("the overlay has another content (%v)", err)
				}
			}
		})
	}
}

func TestTrackWithErrors(t *testing.T) {
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	claim.PersistentVolumeClaim.ClaimName = "c"
	vmi := vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeFilesystem), asDisk(nil))
	for name, tc := range map[string]struct {
		err   error
		fails bool
	}{
		"the launcher is unreachable":    {fmt.Errorf("create: %w", hypervisor.ErrUnreachable), true},
		"there is no directory for them": {errors.New("no such directory"), false},
	} {
		launcher := libvirt.NewNode().Launcher("pod")
		result, err := Prepare(context.Background(), launcher, content{}.write(t), limits, vmi)
		if err != nil {
			t.Fatal(err)
		}
		launcher.Fail("create", tc.err)
		err = Track(context.Background(), launcher, deviceFiles{}, vmi, result)
		if errors.Is(err, tc.err) != tc.fails || result.Disks["v"].DataPath != "" || len(result.Untracked) > 0 == tc.fails {
			t.Errorf("%s: got %v with %+v", name, err, result.Disks["v"])
		}
	}
}

// What virt-broker has not said is not known: the guest waits for it, as its disk would not be tracked until its next
// start.
func TestTrackWaitsForTheBroker(t *testing.T) {
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	claim.PersistentVolumeClaim.ClaimName = "c"
	for _, mode := range []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock} {
		vmi, busy := vmiWith(claim, claimOf("1Gi", mode), asDisk(nil)), errors.New("virt-broker is busy")
		launcher := libvirt.NewNode().Launcher("pod")
		result, err := Prepare(context.Background(), launcher, content{}.write(t), limits, vmi)
		if err != nil {
			t.Fatal(err)
		}
		err = Track(context.Background(), launcher, deviceFiles{bytes: 1 << 30, err: busy}, vmi, result)
		if !errors.Is(err, busy) || result.Disks["v"].DataPath != "" || len(result.Untracked) > 0 {
			t.Errorf("%s: got %v with %+v", mode, err, result)
		}
	}
}
