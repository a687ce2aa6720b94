// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
)

// An agent of another node may send any text. What is refused takes little memory before that.
func TestBitmapsWithManyElementsAreNotDecoded(t *testing.T) {
	for name, element := range map[string]string{
		"disks":   `{},`,
		"nothing": `null,`,
		"bitmaps": `{"bitmaps":[` + strings.Repeat(`{},`, 1000) + `{}]},`,
		"parts":   `{"bitmaps":[{"parts":[` + strings.Repeat(`{},`, 1000) + `{}]}]},`,
	} {
		body := append([]byte{'['}, bytes.Repeat([]byte(element), (maxBitmapsBody-8)/len(element))...)
		body = append(bytes.TrimSuffix(body, []byte(",")), ']')
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decodeBitmaps(bytes.NewReader(body))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "commas") {
			t.Errorf("%s: %v", name, err)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 4<<20 {
			t.Errorf("%s: %d bytes were allocated", name, allocated)
		}
	}
}

func TestMostBitmapsAreDecoded(t *testing.T) {
	const disks = 32
	sent := make([]DiskBitmaps, disks)
	for i := range sent {
		sent[i] = DiskBitmaps{Volume: fmt.Sprintf("volume-%d", i), Bytes: 1 << 50}
		for k := range overlay.MaxBitmaps {
			bitmap := overlay.Bitmap{Name: fmt.Sprintf("bitmap-%d", k), Granularity: 16}
			for n := range overlay.MaxBits / overlay.PartBytes / disks / overlay.MaxBitmaps {
				bitmap.Parts = append(bitmap.Parts,
					overlay.Part{At: uint64(n) * overlay.PartBytes, Bits: bytes.Repeat([]byte{0xff}, overlay.PartBytes)})
			}
			sent[i].Bitmaps = append(sent[i].Bitmaps, bitmap)
		}
	}
	body, err := json.Marshal(sent)
	if err != nil || len(body) > maxBitmapsBody {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	if received, err := decodeBitmaps(bytes.NewReader(body)); err != nil || !reflect.DeepEqual(received, sent) {
		t.Errorf("it was not received as it was sent: %v", err)
	}
}

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

// virt-broker, which is root, reads for the agent. The agent requests only files of images for the comparison, and
// nothing else of the Pod, such as the kernel's log: reading that removes messages from the node's log.
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
