// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

const (
	ephemeralDir = "/var/run/kubevirt-ephemeral-disks/"
	imageDir     = "/var/run/kubevirt/container-disks/v/disk"
	diskDir      = "/var/run/kubevirt-private/vmi-disks/v"
)

// content are the files of a Pod's volumes, by kind and name.
type content map[VolumeKind]map[string]map[string]string

// write returns the content as the kubelet has written it.
func (c content) write(t *testing.T) Content {
	t.Helper()
	return c
}

// Secret returns the first key of a Secret's volume.
func (c content) Secret(volume string, keys ...string) ([]byte, error) {
	for _, key := range keys {
		if data, found := c[SecretVolume][volume][key]; found {
			return []byte(data), nil
		}
	}
	return nil, fs.ErrNotExist
}

// Files returns all files of a volume.
func (c content) Files(kind VolumeKind, volume string) (map[string][]byte, error) {
	found, ok := c[kind][volume]
	if !ok {
		return nil, fmt.Errorf("no volume %q", volume)
	}
	files, left := map[string][]byte{}, maxFileBytes
	for name, data := range found {
		files[name] = []byte(data)
		if left -= len(data); left < 0 {
			return nil, ErrTooMuch
		}
	}
	return files, nil
}

// secrets returns the content of Secrets' volumes.
func secrets(volumes map[string]map[string]string) content { return content{SecretVolume: volumes} }

func vmiWith(source v1.VolumeSource, changes ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm.example"}}
	vmi.Spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223"}
	vmi.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: source}}
	for _, change := range changes {
		change(vmi)
	}
	return vmi
}

func claimOf(capacity string, mode corev1.PersistentVolumeMode) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
			ClaimName: "c", VolumeMode: &mode,
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)},
		}}}
	}
}

func preallocated(vmi *v1.VirtualMachineInstance) {
	vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.Preallocated = true
}

// movedTo adds the status of a storage migration of a disk to another claim.
func movedTo(mode corev1.PersistentVolumeMode, size int64) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v", Size: size}}
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "v",
			SourcePVCInfo:      &v1.PersistentVolumeClaimInfo{ClaimName: "old"},
			DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new", VolumeMode: &mode}}}
	}
}

func withFilledFile(dir, name, format string, bytes uint64) func(*libvirt.Launcher) {
	return func(l *libvirt.Launcher) {
		l.AddFile(dir, hypervisor.Volume{Name: name, Format: format, Capacity: bytes, Allocation: bytes + 4096})
	}
}

func asCDRom(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "v", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}}
}

func withFile(dir, name, format string, capacity uint64) func(*libvirt.Launcher) {
	return func(l *libvirt.Launcher) {
		l.AddFile(dir, hypervisor.Volume{Name: name, Format: format, Capacity: capacity})
	}
}

var limits = Limits{ReserveBytes: 131072, TolerateLessPercent: 10}

func TestPrepare(t *testing.T) {
	container := func(path string) v1.VolumeSource {
		return v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", Path: path}}
	}
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	newClaim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "new"}}}
	ephemeral := v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
	host := func(kind v1.HostDiskType) v1.VolumeSource {
		return v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/data/x.img", Type: kind, Capacity: resource.MustParse("10Mi")}}
	}
	overlay := func(backing, format string, capacity int64) *domain.DiskFact {
		return &domain.DiskFact{
			Path: ephemeralDir + "v.qcow2", Format: "qcow2", BackingPath: backing, BackingFormat: format,
			CapacityBytes: capacity,
		}
	}
	for _, tc := range []struct {
		name  string
		vmi   *v1.VirtualMachineInstance
		files []func(*libvirt.Launcher)
		want  *domain.DiskFact
		// invalid and wait are the kind of the expected error, message is part of its text.
		invalid, wait bool
		message       string
	}{
		{name: "containerDisk", vmi: vmiWith(container("")), files: []func(*libvirt.Launcher){withFile(imageDir, "a.qcow2", "qcow2", 5<<20)},
			want: overlay(imageDir+"/a.qcow2", "qcow2", 5<<20)},
		{name: "containerDisk with a path", vmi: vmiWith(container("/x/../../b.img")),
			files: []func(*libvirt.Launcher){withFile("/var/run/kubevirt/container-disks/v", "b.img", "raw", 1<<20)},
			want:  overlay("/var/run/kubevirt/container-disks/v/b.img", "raw", 1<<20)},
		{name: "containerDisk as a CD", vmi: vmiWith(container(""), asCDRom), files: []func(*libvirt.Launcher){withFile(imageDir, "a.iso", "iso", 1<<20)},
			want: &domain.DiskFact{Path: imageDir + "/a.iso", Format: "raw", CapacityBytes: 1 << 20}},
		{name: "containerDisk without a file", vmi: vmiWith(container("")), invalid: true, message: "no file in /disk"},
		{name: "containerDisk with two files", vmi: vmiWith(container("")),
			files:   []func(*libvirt.Launcher){withFile(imageDir, "a", "raw", 1), withFile(imageDir, "b", "raw", 1)},
			invalid: true, message: "2 files"},
		{name: "containerDisk of another format", vmi: vmiWith(container("")), files: []func(*libvirt.Launcher){withFile(imageDir, "a", "vmdk", 1)},
			invalid: true, message: "qcow2 or raw"},
		{name: "emptyDisk", vmi: vmiWith(v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1000")}}),
			want: overlay("", "", 1024)},
		{name: "claim with an image that looks like qcow2", vmi: vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeFilesystem)),
			files: []func(*libvirt.Launcher){withFile(diskDir, "disk.img", "qcow2", 7)},
			want:  &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 7}},
		{name: "new claim", vmi: vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeFilesystem)),
			want: &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 1 << 30}},
		{name: "claim that is too large for its file system", vmi: vmiWith(claim, claimOf("20Gi", corev1.PersistentVolumeFilesystem)),
			message: "not enough space"},
		{name: "block claim", vmi: vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeBlock)),
			want: &domain.DiskFact{Path: "/dev/v", Block: true, Format: "raw", DirectIO: true, CapacityBytes: 1 << 30}},
		{name: "claim with an image without holes", vmi: vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeFilesystem)),
			files: []func(*libvirt.Launcher){withFilledFile(diskDir, "disk.img", "raw", 1<<20)},
			want:  &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 1 << 20, Filled: true}},
		{name: "claim with an image that looks like a small qcow2", vmi: vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeFilesystem)),
			files: []func(*libvirt.Launcher){withFilledFile(diskDir, "disk.img", "qcow2", 7)},
			want:  &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 7}},
		{name: "hostDisk without holes", vmi: vmiWith(v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/data/x.img", Type: v1.HostDiskExists}}),
			files: []func(*libvirt.Launcher){withFilledFile(diskDir, "x.img", "raw", 1<<20)},
			want:  &domain.DiskFact{Path: diskDir + "/x.img", Format: "raw", CapacityBytes: 1 << 20, Filled: true}},
		{name: "preallocated claim", vmi: vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeFilesystem), preallocated),
			want: &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 1 << 30, KeepsSpace: true}},
		{name: "preallocated block claim", vmi: vmiWith(claim, claimOf("1Gi", corev1.PersistentVolumeBlock), preallocated),
			want: &domain.DiskFact{Path: "/dev/v", Block: true, Format: "raw", DirectIO: true, CapacityBytes: 1 << 30,
				KeepsSpace: true}},
		{name: "claim that is not described yet", vmi: vmiWith(claim), wait: true, message: "volumeStatus"},
		{name: "claim that a disk moves to", vmi: vmiWith(newClaim, movedTo(corev1.PersistentVolumeFilesystem, 64<<20+512)),
			want: &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 64<<20 + 512}},
		{name: "claim that a disk moves to, with a larger image", vmi: vmiWith(newClaim, movedTo(corev1.PersistentVolumeFilesystem, 64<<20)),
			files: []func(*libvirt.Launcher){withFile(diskDir, "disk.img", "raw", 65<<20)},
			want:  &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 64 << 20, Sliced: true}},
		{name: "claim that a disk moves to, with a smaller image", vmi: vmiWith(newClaim, movedTo(corev1.PersistentVolumeFilesystem, 64<<20)),
			files: []func(*libvirt.Launcher){withFile(diskDir, "disk.img", "raw", 63<<20)},
			want:  &domain.DiskFact{Path: diskDir + "/disk.img", Format: "raw", CapacityBytes: 64 << 20}},
		{name: "claim that a disk moves to, with a smaller image and without room", vmi: vmiWith(newClaim, movedTo(corev1.PersistentVolumeFilesystem, 64<<30)),
			files:   []func(*libvirt.Launcher){withFile(diskDir, "disk.img", "raw", 63<<20)},
			invalid: true, message: `the guest's disk has 68719476736 bytes, and claim "new" has room for`},
		{name: "claim that a disk moves to, without room", vmi: vmiWith(newClaim, movedTo(corev1.PersistentVolumeFilesystem, 64<<30)),
			invalid: true, message: `on claim "new" only 10737418240 are free`},
		{name: "claim that a disk moves to, a device", vmi: vmiWith(newClaim, movedTo(corev1.PersistentVolumeBlock, 64<<20)),
			want: &domain.DiskFact{Path: "/dev/v", Block: true, Format: "raw", DirectIO: true, CapacityBytes: 64 << 20,
				Sliced: true}},
		{name: "claim that a disk of unknown size moves to", vmi: vmiWith(newClaim, movedTo(corev1.PersistentVolumeBlock, 0)),
			wait: true, message: "size of the guest's disk"},
		{name: "claim that a disk does not move to", vmi: vmiWith(claim, movedTo(corev1.PersistentVolumeBlock, 1)),
			wait: true, message: "migratedVolumes"},
		{name: "ephemeral", vmi: vmiWith(ephemeral, claimOf("1Gi", corev1.PersistentVolumeFilesystem)),
			files: []func(*libvirt.Launcher){withFile(diskDir, "disk.img", "raw", 3<<20)},
			want:  overlay(diskDir+"/disk.img", "raw", 3<<20)},
		{name: "ephemeral over nothing", vmi: vmiWith(ephemeral, claimOf("1Gi", corev1.PersistentVolumeFilesystem)),
			invalid: true, message: "no disk.img"},
		{name: "new hostDisk", vmi: vmiWith(host(v1.HostDiskExistsOrCreate)),
			want: &domain.DiskFact{Path: diskDir + "/x.img", Format: "raw", CapacityBytes: 10 << 20}},
		{name: "new hostDisk in a directory that the kubelet created", vmi: vmiWith(host(v1.HostDiskExistsOrCreate)),
			files: []func(*libvirt.Launcher){func(l *libvirt.Launcher) { l.SetRootDir(diskDir, false) }},
			want:  &domain.DiskFact{Path: diskDir + "/x.img", Format: "raw", CapacityBytes: 10 << 20}},
		{name: "new hostDisk in a directory of root's", vmi: vmiWith(host(v1.HostDiskExistsOrCreate)),
			files:   []func(*libvirt.Launcher){func(l *libvirt.Launcher) { l.SetRootDir(diskDir, true) }},
			message: "permission denied"},
		{name: "hostDisk without room", vmi: vmiWith(v1.VolumeSource{HostDisk: &v1.HostDisk{
			Path: "/data/x.img", Type: v1.HostDiskExistsOrCreate, Capacity: resource.MustParse("20Gi")}}),
			message: "/data/x.img: not enough space"},
		{name: "hostDisk without a size", vmi: vmiWith(v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/data/x.img", Type: v1.HostDiskExistsOrCreate}}),
			invalid: true, message: "size of its disk is not known"},
		{name: "hostDisk that is smaller than requested", vmi: vmiWith(v1.VolumeSource{HostDisk: &v1.HostDisk{
			Path: "/data/x.img", Type: v1.HostDiskExistsOrCreate, Capacity: resource.MustParse("11Gi")}}),
			// Ten percent less is tolerated, and the reserve is kept free.
			want: &domain.DiskFact{Path: diskDir + "/x.img", Format: "raw", CapacityBytes: 10<<30 - 1<<20}},
		{name: "hostDisk that must exist", vmi: vmiWith(host(v1.HostDiskExists)), invalid: true, message: "/data/x.img"},
		{name: "ephemeral over a device", vmi: vmiWith(ephemeral, claimOf("1Gi", corev1.PersistentVolumeBlock)),
			files: []func(*libvirt.Launcher){withFile("/dev", "v", "raw", 3<<30)},
			want: &domain.DiskFact{Path: ephemeralDir + "v.qcow2", Format: "qcow2", BackingPath: "/dev/v", BackingFormat: "raw",
				BackingBlock: true, CapacityBytes: 3 << 30}},
		{name: "unsupported kind", vmi: vmiWith(v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}),
			invalid: true, message: "kind"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			launcher := libvirt.NewNode().Launcher("pod")
			for _, add := range tc.files {
				add(launcher)
			}
			// Twice: Prepare is idempotent.
			for range 2 {
				got, err := Prepare(context.Background(), launcher, content{}.write(t), limits, tc.vmi)
				if tc.want == nil {
					expectError(t, err, tc.invalid, tc.wait, tc.message)
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(map[string]domain.DiskFact{"v": *tc.want}, got.Disks); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func expectError(t *testing.T, err error, invalid, wait bool, text string) {
	t.Helper()
	var as *InvalidError
	if errors.As(err, &as) != invalid || errors.Is(err, ErrWait) != wait || err == nil ||
		!strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want one with %q (invalid %v, wait %v)", err, text, invalid, wait)
	}
	if invalid && as != nil && as.Volume != "v" {
		t.Errorf("the error does not name the volume: %v", err)
	}
}

func TestCloudInit(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte("#encoded"))
	ref := &corev1.LocalObjectReference{Name: "s"}
	noCloudSource := func(s v1.CloudInitNoCloudSource) v1.VolumeSource { return v1.VolumeSource{CloudInitNoCloud: &s} }
	for _, tc := range []struct {
		name     string
		source   v1.VolumeSource
		content  content
		contains []string
		message  string
		// retryable is the InvalidError's.
		retryable bool
	}{
		{name: "inline", source: noCloudSource(v1.CloudInitNoCloudSource{UserData: "#inline", NetworkData: "version: 2"}),
			contains: []string{"#inline", "version: 2", `"instance-id":"5d307ca9-b3ef-428c-8861-06e72d69f223"`, `"local-hostname":"vm"`}},
		{name: "base64", source: noCloudSource(v1.CloudInitNoCloudSource{UserDataBase64: encoded, NetworkDataBase64: encoded}),
			contains: []string{"#encoded"}},
		{name: "secrets", source: noCloudSource(v1.CloudInitNoCloudSource{UserDataSecretRef: ref, NetworkDataSecretRef: ref}),
			content: secrets(map[string]map[string]string{"v-udata": {"userdata": "#secret"},
				"v-ndata": {"networkData": "net"}}), contains: []string{"#secret", "net"}},
		{name: "config drive", source: v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#drive"}},
			contains: []string{"#drive", `"hostname":"vm"`, "openstack", "config-2"}},
		{name: "bad base64", source: noCloudSource(v1.CloudInitNoCloudSource{UserDataBase64: "%"}), message: "userDataBase64 is not base64"},
		{name: "a Secret without the key", source: noCloudSource(v1.CloudInitNoCloudSource{UserDataSecretRef: ref}),
			content: secrets(map[string]map[string]string{"v-udata": {"x": ""}}),
			message: `Secret "s" has neither the key "userdata" nor "userData"`, retryable: true},
		{name: "a Secret without the network data", source: noCloudSource(v1.CloudInitNoCloudSource{NetworkDataSecretRef: ref}),
			content: secrets(map[string]map[string]string{"v-ndata": {}}),
			message: `Secret "s" has neither the key "networkdata" nor "networkData"`, retryable: true},
		{name: "too much", source: noCloudSource(v1.CloudInitNoCloudSource{UserData: strings.Repeat("x", maxCloudInit+1)}), message: "more than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			launcher := libvirt.NewNode().Launcher("pod")
			got, err := Prepare(context.Background(), launcher, tc.content.write(t), limits, vmiWith(tc.source))
			if tc.message != "" {
				expectError(t, err, true, false, tc.message)
				if invalid := (*InvalidError)(nil); errors.As(err, &invalid) && invalid.Retryable != tc.retryable {
					t.Errorf("Retryable is %v", invalid.Retryable)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Disks["v"].Path != ephemeralDir+"v.iso" || got.Disks["v"].Format != "raw" {
				t.Errorf("got %+v", got.Disks["v"])
			}
			for _, text := range tc.contains {
				if !bytes.Contains(launcher.Content("v.iso"), []byte(text)) {
					t.Errorf("the medium does not contain %q", text)
				}
			}
		})
	}
}

func TestKernelBoot(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
		Container: &v1.KernelBootContainer{KernelPath: "/boot/vmlinuz", InitrdPath: "../../etc/initrd"},
	}}
	got, err := Prepare(context.Background(), nil, nil, limits, vmi)
	want := &domain.KernelBootFact{
		Kernel: launcherpod.KernelBootDir + "/boot/vmlinuz", Initrd: launcherpod.KernelBootDir + "/etc/initrd",
	}
	if err != nil || !cmp.Equal(want, got.KernelBoot) {
		t.Errorf("got %+v (%v)", got, err)
	}
}

func TestImageSize(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		name             string
		want, free, size uint64
	}{
		{"plenty of room", 100 * mib, 1000 * mib, 100 * mib},
		{"a little less", 100 * mib, 95 * mib, 94 * mib},
		{"just tolerated", 100 * mib, 91 * mib, 90 * mib},
		{"too little", 100 * mib, 80 * mib, 0},
		{"none", 100 * mib, 0, 0},
		{"unknown", 0, 1000 * mib, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			size, err := limits.imageSize(tc.want, tc.free)
			if size != tc.size || (err != nil) != (tc.size == 0) {
				t.Errorf("got %d (%v), want %d", size, err, tc.size)
			}
		})
	}
}
