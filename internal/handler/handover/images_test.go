// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/migrationtls"
)

// imageDomain is a guest with two containerDisks, of which one is below an overlay, a claim and a kernel of an image.
const imageDomain = `<domain type="kvm"><os>
  <kernel>/var/run/kubevirt/kernel-boot/boot/vmlinuz</kernel>
</os><devices>
  <disk type="file" device="disk"><source file="/var/run/kubevirt-ephemeral-disks/root.qcow2"/>
    <backingStore type="file"><format type="raw"/><source file="/var/run/kubevirt/container-disks/root/disk/disk.img"/><backingStore/></backingStore>
    <target dev="vda" bus="virtio"/><alias name="ua-disk-root"/></disk>
  <disk type="file" device="cdrom"><source file="/var/run/kubevirt/container-disks/tools/tools.iso"/><backingStore/>
    <target dev="sda" bus="sata"/><readonly/><alias name="ua-disk-tools"/></disk>
  <disk type="file" device="disk"><source file="/var/run/kubevirt-private/vmi-disks/data/disk.img"/><target dev="vdb" bus="virtio"/>
    <alias name="ua-disk-data"/></disk>
  <disk type="file" device="disk"><source file="/var/run/kubevirt/container-disks/root/../../../etc/shadow"/><target dev="vdc" bus="virtio"/>
    <alias name="ua-disk-odd"/></disk>
</devices></domain>`

func parse(t *testing.T, text string) *libvirtxml.Domain {
	t.Helper()
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFilesOfImages(t *testing.T) {
	got := imageFiles(parse(t, imageDomain))
	want := map[string]imageFile{
		"root":     {"/var/run/kubevirt/container-disks/root", "disk/disk.img"},
		"tools":    {"/var/run/kubevirt/container-disks/tools", "tools.iso"},
		kernelFile: {"/var/run/kubevirt/kernel-boot", "boot/vmlinuz"},
	}
	if !maps.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// TestALauncherChoosesNoDirectory: the agent, which is root, reads for the comparison what lies in images, and nothing else of the Pod,
// such as the kernel's log, which whoever reads it takes from the node's own.
func TestALauncherChoosesNoDirectory(t *testing.T) {
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
		if got := imageFiles(d); len(got) > 0 {
			t.Errorf("alias %s: found %v", alias, got)
		}
	}
}

// imagePeers have images.
type imagePeers struct {
	Peers
	// sums are what they hold, nil if they cannot tell.
	sums map[string]ImageSum
	// digests are those that the spec of the target's Pod names.
	digests map[string]string
	// failures are the answers before that.
	failures []error
	// asked is called with each question.
	asked func(ctx context.Context) error
}

func (p *imagePeers) Destination(context.Context, Migration) (*Destination, error) {
	return &Destination{
		Address: "10.0.0.7", Domain: imageDomain, TLSName: "migration-m", TLS: &migrationtls.Files{}, Images: p.sums != nil, Digests: p.digests,
	}, nil
}

func (p *imagePeers) Images(ctx context.Context, _ Migration) (*Images, error) {
	if p.asked != nil {
		return nil, p.asked(ctx)
	}
	if len(p.failures) > 0 {
		err := p.failures[0]
		p.failures = p.failures[1:]
		return nil, err
	}
	return &Images{Sums: p.sums}, nil
}

// imageMachine runs imageDomain, and says that the guest was copied when it is asked to.
type imageMachine struct {
	deafMachine
	domain *libvirtxml.Domain
	copied bool
}

func (m *imageMachine) LiveXML(context.Context, string) (*libvirtxml.Domain, error) {
	return m.domain, nil
}

var errCopied = errors.New("libvirt copies")

func (m *imageMachine) Copy(context.Context, hypervisor.CopyRequest) error {
	m.copied = true
	return errCopied
}

func (*imageMachine) CancelCopy(context.Context, string) error { return nil }

// digestsHere are those that the spec of the source's Pod names: of root, and none of the others.
var digestsHere = map[string]string{"/var/run/kubevirt/container-disks/root": "sha256:1"}

var (
	rootSum   = ImageSum{Size: 1 << 20, CRC32: 1}
	toolsSum  = ImageSum{Size: 1 << 10, CRC32: 2}
	kernelSum = ImageSum{Size: 1 << 12, CRC32: 3}
)

// moveImages moves a guest with images to peers, and returns what became of the copy and what its user was told.
func moveImages(t *testing.T, peers *imagePeers, live string, begun func(*Copies)) (copied bool, told []string, ended error) {
	t.Helper()
	var mu sync.Mutex
	notified := make(chan types.NamespacedName, 1)
	copies := NewCopies(CopiesOptions{
		Peers: peers, Notify: func(key types.NamespacedName) { notified <- key },
		Sum: func(_ context.Context, pod hypervisor.PodRef, _, name string) (ImageSum, error) {
			if pod.UID != "here" {
				return ImageSum{}, errors.New("another Pod")
			}
			return map[string]ImageSum{"disk.img": rootSum, "tools.iso": toolsSum, "vmlinuz": kernelSum}[name[strings.LastIndex(name, "/")+1:]], nil
		},
		Tell: func(_ *v1.VirtualMachineInstance, reason v1.SyncEvent, _, message string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, reason.String()+": "+message)
		},
	})
	t.Cleanup(copies.stop)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "registry/os:latest"}}}}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", TargetNode: "blue", TargetPod: "launcher-b"}
	machine := &imageMachine{domain: parse(t, live)}
	machine.canceled = make(chan struct{})
	copies.Begin(vmi, hypervisor.PodRef{UID: "here"}, digestsHere, machine)
	if begun != nil {
		begun(copies)
	}
	<-notified
	mu.Lock()
	defer mu.Unlock()
	return machine.copied, told, copies.Find("m").State().Err
}

func TestOnlyAGuestWhoseImagesAreTheSameIsCopied(t *testing.T) {
	same := map[string]ImageSum{"root": rootSum, "tools": toolsSum, kernelFile: kernelSum}
	with := func(key string, sum ImageSum) map[string]ImageSum {
		changed := maps.Clone(same)
		changed[key] = sum
		return changed
	}
	without := maps.Clone(same)
	delete(without, "tools")
	for what, test := range map[string]struct {
		peers imagePeers
		// failure is a part of why the guest is not copied.
		failure string
	}{
		"the same images":            {peers: imagePeers{sums: same}},
		"an image that is larger":    {imagePeers{sums: with("root", ImageSum{Size: 1, CRC32: 1})}, "image registry/os:latest (volume root)"},
		"an image that differs":      {imagePeers{sums: with("root", ImageSum{Size: 1 << 20, CRC32: 9})}, "launcher Pod launcher-b"},
		"a kernel that differs":      {imagePeers{sums: with(kernelFile, ImageSum{Size: 1 << 12, CRC32: 9})}, kernelFile},
		"an image that is not there": {imagePeers{sums: without}, "volume tools"},
		"a digest that is the same":  {peers: imagePeers{sums: with("root", ImageSum{Size: 1}), digests: digestsHere}},
		"another digest": {
			imagePeers{sums: with("root", ImageSum{Size: 1}), digests: map[string]string{"/var/run/kubevirt/container-disks/root": "sha256:2"}}, "volume root",
		},
		"a digest that is the target's alone": {
			imagePeers{sums: with("tools", ImageSum{Size: 1}), digests: map[string]string{"/var/run/kubevirt/container-disks/tools": "sha256:1"}}, "volume tools",
		},
		"a target that cannot compare": {imagePeers{}, "virt-handler on node blue is of a version"},
		"a target that refuses": {
			imagePeers{sums: same, failures: []error{&RefusedError{Node: "blue", Code: http.StatusForbidden, Message: "no"}}}, "refused",
		},
		"a target that starts again": {peers: imagePeers{sums: same, failures: []error{errors.New("connection refused")}}},
	} {
		t.Run(what, func(t *testing.T) {
			copied, told, err := moveImages(t, &test.peers, imageDomain, nil)
			if test.failure == "" {
				if !copied || !errors.Is(err, errCopied) {
					t.Errorf("the guest is not copied: %v", err)
				}
				return
			}
			if copied || err == nil || !strings.Contains(err.Error(), test.failure) {
				t.Errorf("copied: %v, %v, want %q", copied, err, test.failure)
			}
			if strings.Contains(err.Error(), "do not match") != (len(told) == 1 && strings.HasPrefix(told[0], "ContainerDiskFailedChecksum: Aborting migration as ")) {
				t.Errorf("the user is told %q of %v", told, err)
			}
		})
	}
}

func TestALauncherCannotHideAnImage(t *testing.T) {
	silent := `<domain type="kvm"><devices><disk type="file" device="disk"><source file="/var/run/kubevirt-ephemeral-disks/root.qcow2"/>
		<target dev="vda" bus="virtio"/><alias name="ua-disk-root"/></disk></devices></domain>`
	peers := &imagePeers{sums: map[string]ImageSum{"root": {Size: 1}, "tools": toolsSum, kernelFile: kernelSum}}
	copied, _, err := moveImages(t, peers, silent, nil)
	if copied || err == nil || !strings.Contains(err.Error(), "volume root") {
		t.Errorf("copied: %v, %v", copied, err)
	}
}

func TestReadingImagesEndsWithTheMigration(t *testing.T) {
	asked := make(chan struct{})
	peers := &imagePeers{sums: map[string]ImageSum{}, asked: func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		return ctx.Err()
	}}
	copied, _, err := moveImages(t, peers, imageDomain, func(copies *Copies) {
		<-asked
		if err := copies.Find("m").Cancel(t.Context(), "not any more"); err != nil {
			t.Error(err)
		}
	})
	var canceled *CanceledError
	if copied || !errors.As(err, &canceled) {
		t.Errorf("copied: %v, %v", copied, err)
	}
}

func TestAnImageIsReadOnceForEachPod(t *testing.T) {
	reads := map[types.UID]int{}
	failed := errors.New("storage is away")
	var fails error
	sum := SumFile(func(_ context.Context, pod hypervisor.PodRef, _, _ string) (ImageSum, error) {
		reads[pod.UID]++
		return ImageSum{Size: int64(reads[pod.UID])}, fails
	}).Once()
	read := func(pod types.UID, name string) ImageSum {
		t.Helper()
		got, err := sum(t.Context(), hypervisor.PodRef{UID: pod}, "/image", name)
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
	for i := range sumsKept {
		read("c", fmt.Sprint(i))
	}
	if got := read("b", "disk.img"); got.Size != 2 {
		t.Errorf("a file of long ago: %v", got)
	}
}
