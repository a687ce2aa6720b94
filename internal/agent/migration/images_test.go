// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	_ "embed"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/agent/migration/qemutls"
)

// imageDomain is a guest with two containerDisks, of which one is below an overlay, a claim and a kernel of an image.
//
//go:embed peer/testdata/images.xml
var imageDomain string

func parse(t *testing.T, text string) *libvirtxml.Domain {
	t.Helper()
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	return d
}

// imagePeer is the agent of a target with images.
type imagePeer struct {
	Peer
	// checksums are those of the target's images; nil if the agent does not support the comparison.
	checksums map[string]peer.Checksum
	// digests are those that the spec of the target's Pod names.
	digests map[string]string
	// failures are returned first.
	failures []error
	// onRequest is called with each request.
	onRequest func(ctx context.Context) error
}

func (p *imagePeer) Destination(context.Context, peer.Attempt) (*peer.Destination, error) {
	return &peer.Destination{
		Address: "10.0.0.7", Domain: imageDomain, TLSName: "migration-m", TLS: &qemutls.Files{}, Images: p.checksums != nil, Digests: p.digests,
	}, nil
}

func (p *imagePeer) Images(ctx context.Context, _ peer.Attempt) (*peer.Images, error) {
	if p.onRequest != nil {
		return nil, p.onRequest(ctx)
	}
	if len(p.failures) > 0 {
		err := p.failures[0]
		p.failures = p.failures[1:]
		return nil, err
	}
	return &peer.Images{Checksums: p.checksums}, nil
}

// imageSource runs imageDomain, and fails the transfer when it is started.
type imageSource struct {
	unresponsiveSource
	domain      *libvirtxml.Domain
	transferred bool
}

func (m *imageSource) LiveXML(context.Context, string) (*libvirtxml.Domain, error) {
	return m.domain, nil
}

var errTransferred = errors.New("libvirt transfers")

func (m *imageSource) Transfer(context.Context, hypervisor.TransferRequest) error {
	m.transferred = true
	return errTransferred
}

func (*imageSource) CancelTransfer(context.Context, string) error { return nil }

// sourceDigests are the digests in the spec of the source's Pod: only root has one.
var sourceDigests = map[string]string{"/var/run/kubevirt/container-disks/root": "sha256:1"}

var (
	rootChecksum   = peer.Checksum{Size: 1 << 20, CRC32: 1}
	toolsChecksum  = peer.Checksum{Size: 1 << 10, CRC32: 2}
	kernelChecksum = peer.Checksum{Size: 1 << 12, CRC32: 3}
)

// transferWithImages migrates a guest with images. It returns whether the transfer was started, its events and its error.
func transferWithImages(t *testing.T, peers *imagePeer, live string, started func(*Transfers)) (transferred bool, events []string, ended error) {
	t.Helper()
	var mu sync.Mutex
	enqueued := make(chan types.NamespacedName, 1)
	transfers := NewTransfers(Options{
		Peer: peers, Enqueue: func(key types.NamespacedName) { enqueued <- key },
		Checksum: func(_ context.Context, pod hypervisor.PodRef, _, name string) (peer.Checksum, error) {
			if pod.UID != "here" {
				return peer.Checksum{}, errors.New("another Pod")
			}
			return map[string]peer.Checksum{"disk.img": rootChecksum, "tools.iso": toolsChecksum, "vmlinuz": kernelChecksum}[name[strings.LastIndex(name, "/")+1:]], nil
		},
		RecordEvent: func(_ *v1.VirtualMachineInstance, reason v1.SyncEvent, _, message string) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, reason.String()+": "+message)
		},
	})
	t.Cleanup(transfers.stop)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "registry/os:latest"}}}}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", TargetNode: "blue", TargetPod: "launcher-b"}
	source := &imageSource{domain: parse(t, live)}
	source.canceled = make(chan struct{})
	transfers.StartTransfer(vmi, hypervisor.PodRef{UID: "here"}, sourceDigests, source)
	if started != nil {
		started(transfers)
	}
	<-enqueued
	mu.Lock()
	defer mu.Unlock()
	return source.transferred, events, transfers.Find("m").State().Err
}

func TestGuestIsTransferredOnlyWithSameImages(t *testing.T) {
	same := map[string]peer.Checksum{"root": rootChecksum, "tools": toolsChecksum, peer.KernelFile: kernelChecksum}
	with := func(key string, checksum peer.Checksum) map[string]peer.Checksum {
		changed := maps.Clone(same)
		changed[key] = checksum
		return changed
	}
	without := maps.Clone(same)
	delete(without, "tools")
	for what, test := range map[string]struct {
		peers imagePeer
		// failure is a part of the error; empty if the guest is transferred.
		failure string
	}{
		"the same images":            {peers: imagePeer{checksums: same}},
		"an image that is larger":    {imagePeer{checksums: with("root", peer.Checksum{Size: 1, CRC32: 1})}, "image registry/os:latest (volume root)"},
		"an image that differs":      {imagePeer{checksums: with("root", peer.Checksum{Size: 1 << 20, CRC32: 9})}, "launcher Pod launcher-b"},
		"a kernel that differs":      {imagePeer{checksums: with(peer.KernelFile, peer.Checksum{Size: 1 << 12, CRC32: 9})}, peer.KernelFile},
		"an image that is not there": {imagePeer{checksums: without}, "volume tools"},
		"a digest that is the same":  {peers: imagePeer{checksums: with("root", peer.Checksum{Size: 1}), digests: sourceDigests}},
		"another digest": {
			imagePeer{checksums: with("root", peer.Checksum{Size: 1}), digests: map[string]string{"/var/run/kubevirt/container-disks/root": "sha256:2"}}, "volume root",
		},
		"a digest that is the target's alone": {
			imagePeer{checksums: with("tools", peer.Checksum{Size: 1}), digests: map[string]string{"/var/run/kubevirt/container-disks/tools": "sha256:1"}}, "volume tools",
		},
		"a target that cannot compare": {imagePeer{}, "node blue"},
		"a target that refuses": {
			imagePeer{checksums: same, failures: []error{&peer.RefusedError{Node: "blue", Code: http.StatusForbidden, Message: "no"}}}, "refused",
		},
		"a target that starts again": {peers: imagePeer{checksums: same, failures: []error{errors.New("connection refused")}}},
	} {
		t.Run(what, func(t *testing.T) {
			transferred, events, err := transferWithImages(t, &test.peers, imageDomain, nil)
			if test.failure == "" {
				if !transferred || !errors.Is(err, errTransferred) {
					t.Errorf("the guest is not transferred: %v", err)
				}
				return
			}
			if transferred || err == nil || !strings.Contains(err.Error(), test.failure) {
				t.Errorf("transferred: %v, %v, want %q", transferred, err, test.failure)
			}
			if strings.Contains(err.Error(), "do not match") != (len(events) == 1 && strings.HasPrefix(events[0], "ContainerDiskFailedChecksum: Aborting migration as ")) {
				t.Errorf("events %q of %v", events, err)
			}
		})
	}
}

func TestLauncherCannotHideImage(t *testing.T) {
	incomplete := `<domain type="kvm"><devices><disk type="file" device="disk"><source file="/var/run/kubevirt-ephemeral-disks/root.qcow2"/>
		<target dev="vda" bus="virtio"/><alias name="ua-disk-root"/></disk></devices></domain>`
	peers := &imagePeer{checksums: map[string]peer.Checksum{"root": {Size: 1}, "tools": toolsChecksum, peer.KernelFile: kernelChecksum}}
	transferred, _, err := transferWithImages(t, peers, incomplete, nil)
	if transferred || err == nil || !strings.Contains(err.Error(), "volume root") {
		t.Errorf("transferred: %v, %v", transferred, err)
	}
}

func TestReadingImagesEndsWithMigration(t *testing.T) {
	requested := make(chan struct{})
	peers := &imagePeer{checksums: map[string]peer.Checksum{}, onRequest: func(ctx context.Context) error {
		close(requested)
		<-ctx.Done()
		return ctx.Err()
	}}
	transferred, _, err := transferWithImages(t, peers, imageDomain, func(transfers *Transfers) {
		<-requested
		if err := transfers.Find("m").Cancel(t.Context(), "canceled by the test"); err != nil {
			t.Error(err)
		}
	})
	var canceled *CanceledError
	if transferred || !errors.As(err, &canceled) {
		t.Errorf("transferred: %v, %v", transferred, err)
	}
}
