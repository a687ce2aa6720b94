// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration/policy"
)

// Keys of the files of a kernelBoot image in Images. No volume has such a name.
const (
	KernelFile = "kernelBoot/kernel"
	InitrdFile = "kernelBoot/initrd"
)

// ChecksumFunc reads a file of a launcher Pod, on the file system that is mounted at a directory of the Pod.
type ChecksumFunc func(ctx context.Context, pod hypervisor.PodRef, mount, name string) (Checksum, error)

// ImageFile is a file of an image: the directory where the image is mounted, and the file's path below it.
type ImageFile struct{ Mount, Name string }

// ImageFiles returns the files of images that a domain uses, by their keys in Images.
func ImageFiles(d *libvirtxml.Domain) map[string]ImageFile {
	found := map[string]ImageFile{}
	add := func(key, mount, file string) {
		if name, inside := strings.CutPrefix(path.Clean(file), mount+"/"); inside {
			found[key] = ImageFile{Mount: mount, Name: name}
		}
	}
	if d.OS != nil {
		add(KernelFile, launcherpod.KernelBootDir, d.OS.Kernel)
		add(InitrdFile, launcherpod.KernelBootDir, d.OS.Initrd)
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
		// A hostile launcher may choose the alias: one that is no volume's name could select another directory of the Pod.
		if !ours || len(validation.IsDNS1123Label(volume)) > 0 {
			continue
		}
		for _, file := range diskFiles(disk) {
			add(volume, launcherpod.ContainerDiskDir(volume), file)
		}
	}
	return found
}

// diskFiles returns the file of a disk and its backing file. No disk of a guest has more.
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

// All returns the checksums of files in a Pod, by the files' keys.
func (s ChecksumFunc) All(ctx context.Context, pod hypervisor.PodRef, files map[string]ImageFile) (map[string]Checksum, error) {
	sums := map[string]Checksum{}
	for key, file := range files {
		sum, err := s(ctx, pod, file.Mount, file.Name)
		if err != nil {
			return nil, fmt.Errorf("read %s of launcher Pod %s for its checksum: %w", path.Join(file.Mount, file.Name), pod.UID, err)
		}
		sums[key] = sum
	}
	return sums, nil
}

// maxCached is how many checksums a process caches: those of several hundred Pods.
const maxCached = 1000

// Cached returns a ChecksumFunc that reads each file once. A Pod's images do not change: its containers are started once.
func (s ChecksumFunc) Cached() ChecksumFunc {
	type file struct {
		pod         types.UID
		mount, name string
	}
	var mu sync.Mutex
	known := map[file]Checksum{}
	var order []file
	return func(ctx context.Context, pod hypervisor.PodRef, mount, name string) (Checksum, error) {
		key := file{pod.UID, mount, name}
		mu.Lock()
		sum, found := known[key]
		mu.Unlock()
		if found {
			return sum, nil
		}
		sum, err := s(ctx, pod, mount, name)
		if err != nil {
			return Checksum{}, err
		}
		mu.Lock()
		defer mu.Unlock()
		if _, found := known[key]; !found {
			known[key], order = sum, append(order, key)
		}
		if len(order) > maxCached {
			delete(known, order[0])
			order = order[1:]
		}
		return sum, nil
	}
}

// Images returns the checksums of the images in the target's Pod, when the target's agent has read them.
func (c *Client) Images(ctx context.Context, a Attempt) (*Images, error) {
	ctx, cancel := context.WithTimeout(ctx, policy.ImageTimeout)
	defer cancel()
	body, err := c.do(ctx, http.MethodGet, a, imagesRequest, nil)
	if err != nil {
		return nil, err
	}
	images := &Images{}
	if err := json.Unmarshal(body, images); err != nil {
		return nil, unreachable(a, err)
	}
	return images, nil
}

// images returns the checksums of the images in the Pod. It reads them as long as the client waits.
func (s *Server) images(w http.ResponseWriter, r *http.Request, req request) error {
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(req.target.Domain); err != nil {
		return fmt.Errorf("read the domain that was prepared: %w", err)
	}
	// Reading may take longer than the timeouts of other requests.
	limits := http.NewResponseController(w)
	if err := errors.Join(limits.SetReadDeadline(time.Time{}), limits.SetWriteDeadline(time.Time{})); err != nil {
		return fmt.Errorf("remove the deadline of the request: %w", err)
	}
	sums, err := s.Checksum.All(r.Context(), req.target.Pod, ImageFiles(d))
	if err != nil {
		return err
	}
	httpserver.WriteJSON(w, http.StatusOK, Images{Checksums: sums})
	return nil
}
