// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// imageDomain is a guest with two containerDisks, of which one is below an overlay, a claim and a kernel of an image.
//
//go:embed testdata/images.xml
var imageDomain string

func parse(t *testing.T, text string) *libvirtxml.Domain {
	t.Helper()
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestImageFiles(t *testing.T) {
	got := ImageFiles(parse(t, imageDomain))
	want := map[string]ImageFile{
		"root":     {"/var/run/kubevirt/container-disks/root", "disk/disk.img"},
		"tools":    {"/var/run/kubevirt/container-disks/tools", "tools.iso"},
		KernelFile: {"/var/run/kubevirt/kernel-boot", "boot/vmlinuz"},
	}
	if !maps.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// virt-broker, which is root, reads for the agent. The agent requests only files of images for the comparison, and nothing else of the
// Pod, such as the kernel's log: reading that removes messages from the node's log.
func TestLauncherChoosesNoDirectory(t *testing.T) {
	for alias, file := range map[string]string{
		"ua-disk-../../../../proc":                   "/proc/kmsg",
		"ua-disk-../../kubevirt-private/vmi-disks/a": "/var/run/kubevirt-private/vmi-disks/a/disk.img",
		"ua-disk-..":   "/var/run/kubevirt/x",
		"ua-disk-.":    "/var/run/kubevirt/container-disks/a/disk/disk.img",
		"ua-disk-a/..": "/var/run/kubevirt/container-disks/a/disk/disk.img",
		"ua-disk-a/b":  "/var/run/kubevirt/container-disks/a/b/disk.img",
		"ua-disk-":     "/var/run/kubevirt/container-disks/a/disk/disk.img",
	} {
		d := parse(t, fmt.Sprintf(`<domain type="kvm"><devices><disk type="file" device="disk"><source file=%q/><target dev="vda" bus="virtio"/>`+
			`<alias name=%q/></disk></devices></domain>`, file, alias))
		if got := ImageFiles(d); len(got) > 0 {
			t.Errorf("alias %s: found %v", alias, got)
		}
	}
}

func TestImageIsReadOncePerPod(t *testing.T) {
	reads := map[types.UID]int{}
	failed := errors.New("the storage is unreachable")
	var fails error
	checksum := ChecksumFunc(func(_ context.Context, pod hypervisor.PodRef, _, _ string) (Checksum, error) {
		reads[pod.UID]++
		return Checksum{Size: int64(reads[pod.UID])}, fails
	}).Cached()
	read := func(pod types.UID, name string) Checksum {
		t.Helper()
		got, err := checksum(t.Context(), hypervisor.PodRef{UID: pod}, "/image", name)
		if !errors.Is(err, fails) {
			t.Fatal(err)
		}
		return got
	}
	fails = failed
	read("a", "disk.img")
	fails = nil
	for range 3 {
		if got := read("a", "disk.img"); got.Size != 2 {
			t.Errorf("read %v", got)
		}
	}
	if got := read("a", "kernel"); got.Size != 3 {
		t.Errorf("another file: %v", got)
	}
	if got := read("b", "disk.img"); got.Size != 1 {
		t.Errorf("another Pod's file: %v", got)
	}
	for i := range maxCached {
		read("c", fmt.Sprint(i))
	}
	if got := read("b", "disk.img"); got.Size != 2 {
		t.Errorf("a file that is no longer cached: %v", got)
	}
}
