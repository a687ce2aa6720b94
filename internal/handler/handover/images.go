// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/httpserver"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migrationpolicy"
)

// ImageSum identifies the content of one file of a container image that a guest uses.
type ImageSum struct {
	// Size is its size in bytes, and CRC32 the CRC-32 (IEEE) of all of it.
	Size  int64  `json:"size"`
	CRC32 uint32 `json:"crc32"`
}

// Images is the answer of the target's agent that tells the images in its Pod from others.
type Images struct {
	// Sums has the disk of each containerDisk by the name of its volume, and the kernel and the initrd that are booted from an
	// image by kernelFile and initrdFile.
	Sums map[string]ImageSum `json:"sums"`
}

// Names of the files of a kernelBoot image. No volume is called so.
const (
	kernelFile = "kernelBoot/kernel"
	initrdFile = "kernelBoot/initrd"
)

// SumFile reads a file of a launcher Pod that lies on the file system mounted at a directory of the Pod.
type SumFile func(ctx context.Context, pod hypervisor.PodRef, mount, name string) (ImageSum, error)

// imageFile is where a file of an image is: in a directory where the image is mounted, below it.
type imageFile struct{ mount, name string }

// imageFiles are the files of images that a domain uses, by their names in Images.
func imageFiles(d *libvirtxml.Domain) map[string]imageFile {
	found := map[string]imageFile{}
	add := func(key, mount, file string) {
		if name, inside := strings.CutPrefix(path.Clean(file), mount+"/"); inside {
			found[key] = imageFile{mount: mount, name: name}
		}
	}
	if d.OS != nil {
		add(kernelFile, launcherpod.KernelBootDir, d.OS.Kernel)
		add(initrdFile, launcherpod.KernelBootDir, d.OS.Initrd)
	}
	if d.Devices == nil {
		return found
	}
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		if disk.Alias == nil {
			continue
		}
		volume, ours := strings.CutPrefix(disk.Alias.Name, domain.DiskAlias(""))
		// The guest's launcher may have made the name up: one that is no volume's would lead to another directory of the Pod.
		if !ours || len(validation.IsDNS1123Label(volume)) > 0 {
			continue
		}
		for _, file := range diskFiles(disk) {
			add(volume, launcherpod.ContainerDiskDir(volume), file)
		}
	}
	return found
}

// diskFiles are the files of a disk: its own and the one below it. No disk of a guest has more.
func diskFiles(disk *libvirtxml.DomainDisk) []string {
	var files []string
	add := func(source *libvirtxml.DomainDiskSource) {
		if source != nil && source.File != nil && source.File.File != "" {
			files = append(files, source.File.File)
		}
	}
	add(disk.Source)
	if disk.BackingStore != nil {
		add(disk.BackingStore.Source)
	}
	return files
}

// sum reads files of images in a Pod.
func (s SumFile) sum(ctx context.Context, pod hypervisor.PodRef, files map[string]imageFile) (map[string]ImageSum, error) {
	sums := map[string]ImageSum{}
	for key, file := range files {
		sum, err := s(ctx, pod, file.mount, file.name)
		if err != nil {
			return nil, fmt.Errorf("read %s of launcher Pod %s for its checksum: %w", path.Join(file.mount, file.name), pod.UID, err)
		}
		sums[key] = sum
	}
	return sums, nil
}

// sumsKept is how many files' sums a process remembers: those of several hundred Pods.
const sumsKept = 1000

// Once remembers what was read. An image stays what it is for as long as its Pod, whose containers are started once.
func (s SumFile) Once() SumFile {
	type file struct {
		pod         types.UID
		mount, name string
	}
	var mu sync.Mutex
	known := map[file]ImageSum{}
	var order []file
	return func(ctx context.Context, pod hypervisor.PodRef, mount, name string) (ImageSum, error) {
		key := file{pod.UID, mount, name}
		mu.Lock()
		sum, found := known[key]
		mu.Unlock()
		if found {
			return sum, nil
		}
		sum, err := s(ctx, pod, mount, name)
		if err != nil {
			return ImageSum{}, err
		}
		mu.Lock()
		defer mu.Unlock()
		if _, found := known[key]; !found {
			known[key], order = sum, append(order, key)
		}
		if len(order) > sumsKept {
			delete(known, order[0])
			order = order[1:]
		}
		return sum, nil
	}
}

// Images asks the target's agent what the images in its Pod hold. It answers when it has read them.
func (c *Client) Images(ctx context.Context, m Migration) (*Images, error) {
	ctx, cancel := context.WithTimeout(ctx, migrationpolicy.ImagePatience)
	defer cancel()
	body, err := c.do(ctx, http.MethodGet, m, imagesRequest, nil)
	if err != nil {
		return nil, err
	}
	images := &Images{}
	if err := json.Unmarshal(body, images); err != nil {
		return nil, unreachable(m, err)
	}
	return images, nil
}

// images reads the images in the Pod for as long as somebody waits for that.
func (s *Server) images(w http.ResponseWriter, r *http.Request, asked request) error {
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(asked.arrival.Domain); err != nil {
		return fmt.Errorf("read the domain that was prepared: %w", err)
	}
	// This one takes as long as it takes.
	limits := http.NewResponseController(w)
	if err := errors.Join(limits.SetReadDeadline(time.Time{}), limits.SetWriteDeadline(time.Time{})); err != nil {
		return fmt.Errorf("let the request take its time: %w", err)
	}
	sums, err := s.Sum.sum(r.Context(), asked.arrival.Pod, imageFiles(d))
	if err != nil {
		return err
	}
	httpserver.WriteJSON(w, http.StatusOK, Images{Sums: sums})
	return nil
}

// verifyImages makes sure that the target's Pod has the very images that the guest runs from. Only what the guest has written above
// them is copied: on another image it would be garbage.
func (c *Copies) verifyImages(ctx context.Context, begun *Copy, m Migration, d *Destination, live *libvirtxml.Domain) error {
	built := &libvirtxml.Domain{}
	if err := built.Unmarshal(d.Domain); err != nil {
		return fmt.Errorf("read the domain that the target's agent built: %w", err)
	}
	// What the target uses is in the same place here. The running domain knows better, but need not tell all: the guest's launcher
	// describes it, and a drive may be empty for now.
	files := imageFiles(built)
	maps.Copy(files, imageFiles(live))
	// What both Pods' specs name by one digest is the same.
	maps.DeleteFunc(files, func(_ string, file imageFile) bool {
		digest := begun.digests[file.mount]
		return digest != "" && digest == d.Digests[file.mount]
	})
	if len(files) == 0 {
		return nil
	}
	if !d.Images {
		return fmt.Errorf("virt-handler on node %s is of a version that does not compare images: migrate again when it is updated", m.TargetNode)
	}
	ctx, cancel := begun.cancelable(ctx)
	defer cancel()
	var here map[string]ImageSum
	var there *Images
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		here, err = c.sum.sum(ctx, begun.pod, files)
		return err
	})
	both.Go(func() error {
		return c.patiently(ctx, begun, func() (err error) {
			there, err = c.peers.Images(ctx, m)
			return err
		})
	})
	if err := both.Wait(); err != nil {
		return fmt.Errorf("compare the images of both launcher Pods: %w", err)
	}
	if err := compareImages(begun.vmi, here, there.Sums); err != nil {
		c.say(begun.vmi, reasonImagesDiffer, "CompareImages", "Aborting migration as "+err.Error())
		return err
	}
	return nil
}

// reasonImagesDiffer is the reason of the event about images that differ. That of KubeVirt's releases that compared them, too.
const reasonImagesDiffer v1.SyncEvent = "ContainerDiskFailedChecksum"

// compareImages returns an error that names the files that are not the same at the target, and what to do about it.
func compareImages(vmi *v1.VirtualMachineInstance, here, there map[string]ImageSum) error {
	var different []string
	for key, sum := range here {
		if other, found := there[key]; !found || other != sum {
			different = append(different, imageOf(vmi, key))
		}
	}
	if len(different) == 0 {
		return nil
	}
	slices.Sort(different)
	return fmt.Errorf("the source and target containerdisks/kernelboot do not match: launcher Pod %s has another content of %s "+
		"than the guest was started with. The tag was moved: name the image by its digest, or move the tag back",
		vmi.Status.MigrationState.TargetPod, strings.Join(different, ", "))
}

// imageOf is an image in words.
func imageOf(vmi *v1.VirtualMachineInstance, key string) string {
	if key == kernelFile || key == initrdFile {
		image := ""
		if f := vmi.Spec.Domain.Firmware; f != nil && f.KernelBoot != nil && f.KernelBoot.Container != nil {
			image = f.KernelBoot.Container.Image
		}
		return fmt.Sprintf("image %s (%s)", image, key)
	}
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.Name == key && v.ContainerDisk != nil {
			return fmt.Sprintf("image %s (volume %s)", v.ContainerDisk.Image, key)
		}
	}
	return "volume " + key
}
