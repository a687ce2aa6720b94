// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/decide/migration/policy"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// maxBitmapsBody bounds the body of bitmapsRequest: overlay.MaxBits in base64, and the rest.
	maxBitmapsBody = 2 * overlay.MaxBits
	// maxBitmapsCommas bounds what the body has: overlay.MaxBits are 1024 parts, and 32 disks have up to 512 bitmaps.
	maxBitmapsCommas = 8 << 10
	// bitmapsPatience is for how long a request waits until the bitmaps of another guest are written. The source waits
	// longer.
	bitmapsPatience = time.Second
	// ReceivedBitmaps is the memory for the bitmaps that are received, of one guest at a time: three times the body,
	// because the decoder copies its buffer into one of twice the size when it is full, and what is decoded.
	ReceivedBitmaps = 3*maxBitmapsBody + 2*overlay.MaxBits
	// SentBitmaps is the memory for those that are sent: the bitmaps, those of another disk that is being read, and the
	// body twice.
	SentBitmaps = 2*overlay.MaxBits + 2*maxBitmapsBody
	// MaxAdded is how many bytes may be written to all overlays of a guest, which is paused meanwhile.
	MaxAdded = 16 << 20
)

// DiskBitmaps are the bitmaps of one disk.
type DiskBitmaps struct {
	// Volume is the disk's volume.
	Volume string `json:"volume"`
	// Bytes is the size of the disk.
	Bytes uint64 `json:"bytes"`
	// Bitmaps are its bitmaps.
	Bitmaps []overlay.Bitmap `json:"bitmaps"`
}

// KeepBitmaps sends the bitmaps of a guest's tracked disks, which QEMU must not have open for writing. Without an
// error, the target's QEMU will have all of them. After a RefusedError for which IsTemporary returns false, it has all
// of a disk or none. After any other error, they may still be written: the target's guest must not be completed.
func (c *Client) KeepBitmaps(ctx context.Context, a Attempt, disks []DiskBitmaps) error {
	content, err := json.Marshal(disks)
	if err != nil {
		return err
	}
	_, err = c.send(ctx, http.MethodPut, a, bitmapsRequest, content)
	return err
}

// receiving has an element while bitmaps are received and written, which take much memory.
var receiving = make(chan struct{}, 1)

// commas reads a text of JSON, and fails when it has more than left commas. It limits the elements, of which there is
// at most one more than commas: an element may take much more memory than text.
type commas struct {
	io.Reader
	left int
}

func (c *commas) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.left -= bytes.Count(p[:n], []byte(",")); c.left < 0 {
		err = fmt.Errorf("there are more than %d commas", maxBitmapsCommas)
	}
	return n, err
}

// decodeBitmaps decodes the body of bitmapsRequest.
func decodeBitmaps(body io.Reader) (disks []DiskBitmaps, err error) {
	err = json.NewDecoder(&commas{body, maxBitmapsCommas}).Decode(&disks)
	return disks, err
}

// keepBitmaps writes the bitmaps to the overlays of a guest that is transferred but not complete yet. It responds when
// nothing more is written, and otherwise with an error for which IsTemporary returns true.
func (s *Server) keepBitmaps(w http.ResponseWriter, r *http.Request, req request) error {
	select {
	case receiving <- struct{}{}:
		defer func() { <-receiving }()
	case <-time.After(bitmapsPatience):
		return conflict(req, "the bitmaps of other guests are being received")
	}
	disks, err := decodeBitmaps(http.MaxBytesReader(w, r.Body, maxBitmapsBody))
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("read the bitmaps: %v", err))
	}
	target := &libvirtxml.Domain{}
	if err := target.Unmarshal(req.target.Domain); err != nil {
		return fmt.Errorf("read the domain that was prepared: %w", err)
	}
	launcher, err := s.Open(req.target.Pod)
	if err == nil {
		err = WriteBitmaps(r.Context(), launcher, target, disks)
	}
	switch {
	case errors.Is(err, errMayWrite):
		return err
	case err != nil:
		return conflict(req, err.Error())
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// errMayWrite means that libvirtd may still be writing.
var errMayWrite = errors.New("libvirtd of the launcher Pod may still be writing bitmaps")

// WriteBitmaps writes bitmaps to the overlays of a guest that is transferred and not complete yet, so that QEMU has not
// opened them for writing. All of it is checked before anything is written: it comes from the launcher of the source.
// After an error other than errMayWrite, nothing more is written, and each overlay has all of its bitmaps or none.
func WriteBitmaps(ctx context.Context, launcher overlayWriter, target *libvirtxml.Domain, disks []DiskBitmaps) error {
	files, err := overlaysWith(target, disks)
	if err != nil {
		return err
	}
	state, err := launcher.TargetState(ctx, target.Name)
	if err != nil {
		return err
	}
	if state != protocol.TargetReceiving {
		return errors.New("the guest is not being received")
	}
	pool, err := launcher.Pool(ctx, launcherpod.TrackedPool, launcherpod.TrackedDisksDir)
	if err != nil {
		return err
	}
	for _, file := range files {
		if pool.Find(file.name) == nil {
			return fmt.Errorf("the overlay %s is gone", file.name)
		}
		for _, r := range file.ranges {
			err := launcher.UploadAt(ctx, launcherpod.TrackedPool, file.name, r.At, r.Bytes)
			if errors.Is(err, hypervisor.ErrUnreachable) || err != nil && ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", errMayWrite, err)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// overlayFile is what to write to the overlay of a disk.
type overlayFile struct {
	name   string
	ranges []overlay.Range
}

// overlaysWith returns what to write to the overlays of a guest's disks so that they have bitmaps.
func overlaysWith(target *libvirtxml.Domain, disks []DiskBitmaps) ([]overlayFile, error) {
	var files []overlayFile
	seen, added := map[string]bool{}, 0
	for _, disk := range disks {
		dataFile := dataFileOf(target, disk.Volume, disk.Bytes)
		if dataFile == "" || seen[disk.Volume] {
			return nil, fmt.Errorf("the guest has no overlay here for a disk of %d bytes with the volume %.64q", disk.Bytes,
				disk.Volume)
		}
		seen[disk.Volume] = true
		ranges, err := overlay.Overlay{DiskBytes: disk.Bytes, DataFile: dataFile}.AddBitmaps(disk.Bitmaps)
		if err != nil {
			return nil, fmt.Errorf("the volume %s: %w", disk.Volume, err)
		}
		for _, r := range ranges {
			added += len(r.Bytes)
		}
		if added > MaxAdded {
			return nil, fmt.Errorf("the bitmaps need more than %d bytes", MaxAdded)
		}
		files = append(files, overlayFile{name: overlay.FileName(disk.Volume, disk.Bytes), ranges: ranges})
	}
	return files, nil
}

// dataFileOf returns the data file of the overlay that this agent has made for a disk of this size, or nothing.
func dataFileOf(target *libvirtxml.Domain, volume string, bytes uint64) string {
	disk := domain.FindDisk(target, domain.DiskAlias(volume))
	if disk == nil || !domain.IsTracked(disk) || disk.Source.File == nil || disk.Source.DataStore.Source == nil ||
		disk.Source.File.File != launcherpod.TrackedDisksDir+"/"+overlay.FileName(volume, bytes) {
		return ""
	}
	switch store := disk.Source.DataStore.Source; {
	case store.File != nil:
		return store.File.File
	case store.Block != nil:
		return store.Block.Dev
	default:
		return ""
	}
}

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
		volume, isVolume := strings.CutPrefix(disk.Alias.Name, domain.DiskAlias(""))
		// A hostile launcher may choose the alias: one that is no volume's name could select another directory of the Pod.
		if !isVolume || len(validation.IsDNS1123Label(volume)) > 0 {
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
func (s ChecksumFunc) All(
	ctx context.Context, pod hypervisor.PodRef, files map[string]ImageFile,
) (map[string]Checksum, error) {
	sums := map[string]Checksum{}
	for key, file := range files {
		sum, err := s(ctx, pod, file.Mount, file.Name)
		if err != nil {
			return nil, fmt.Errorf("read %s of launcher Pod %s for its checksum: %w", path.Join(file.Mount, file.Name), pod.UID,
				err)
		}
		sums[key] = sum
	}
	return sums, nil
}

// maxCached is how many checksums a process caches: those of several hundred Pods.
const maxCached = 1000

// Cached returns a ChecksumFunc that reads each file once. A Pod's images do not change: its containers are started
// once.
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
