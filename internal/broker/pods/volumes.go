// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// notClaims are the kubelet's names of kinds of volumes that are no claims.
// Sources: kubernetes pkg/volume/{emptydir,configmap,secret,downwardapi,projected}.
var notClaims = []string{
	"kubernetes.io~empty-dir", "kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~downward-api",
	"kubernetes.io~projected",
}

// maxVolumes is the limit for the entries of a directory with volumes.
const maxVolumes = 64

// EmptyDirs is the directory with the emptyDirs of a Pod.
const EmptyDirs = "volumes/kubernetes.io~empty-dir/"

// EmptyDir opens the directory of an emptyDir of a Pod.
func (p *Pods) EmptyDir(pod, volume string) (*os.File, error) {
	return p.open(pod, EmptyDirs+volume, unix.O_PATH|unix.O_DIRECTORY)
}

// ClaimDir opens the root directory of the one claim with a file system that an attachment Pod has, as a reference.
// Source: kubernetes pkg/kubelet/kubelet_getters.go and pkg/volume/csi (GetPath of csiMountMgr).
func (p *Pods) ClaimDir(pod string) (*os.File, error) {
	kind, name, err := p.onlyVolume(pod, "volumes")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join("volumes", kind, name)
	if kind == "kubernetes.io~csi" {
		dir = filepath.Join(dir, "mount")
	}
	claim, err := p.open(pod, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(expectMount(claim), podprocess.ExpectNoKernelFile(claim)); err != nil {
		_ = claim.Close()
		return nil, fmt.Errorf("attachment Pod %s: %w", pod, err)
	}
	return claim, nil
}

// ClaimImage opens the disk image of the claim, as a reference. It is a regular file of the claim's file system, and no
// link.
func (p *Pods) ClaimImage(pod string) (*os.File, error) {
	claim, err := p.ClaimDir(pod)
	if err != nil {
		return nil, err
	}
	defer func() { _ = claim.Close() }()
	image, err := podprocess.OpenAt(claim, layout.DiskImage, unix.O_PATH|unix.O_NOFOLLOW,
		podprocess.Beneath|unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, fmt.Errorf("open the image of the claim of attachment Pod %s: %w", pod, err)
	}
	info, err := image.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = brokerapi.Refused("%s of the claim of attachment Pod %s is no regular file but %s", layout.DiskImage, pod,
			info.Mode())
	}
	if err != nil {
		_ = image.Close()
		return nil, err
	}
	return image, nil
}

// expectMount returns an error unless a directory is where something is mounted: the kubelet makes it before, and keeps
// it after that.
func expectMount(dir *os.File) error {
	var stat unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &stat); err != nil {
		return &os.PathError{Op: "statx", Path: dir.Name(), Err: err}
	}
	if stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return brokerapi.Refused(
			"the kubelet has mounted no claim: a volume of a node's directory (hostPath) cannot be hotplugged, and others may not be ready")
	}
	return nil
}

// WatchDevices has a channel receive after the kubelet has removed the link to a device that ClaimDevice has found,
// until Close.
func (p *Pods) WatchDevices(removed chan<- struct{}) (err error) {
	if p.links, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	p.events = os.NewFile(uintptr(p.links), "inotify")
	go func() {
		for buffer := make([]byte, unix.SizeofInotifyEvent+unix.NAME_MAX+1); ; {
			if _, err := p.events.Read(buffer); err != nil {
				return
			}
			select {
			case removed <- struct{}{}:
			default:
			}
		}
	}()
	return nil
}

// ClaimDevice opens the file of the device of the one claim with volumeMode Block that an attachment Pod has, as a
// reference, and returns the device's number. The kubelet has a link to the device for each. devices is the directory
// with the devices that CSI drivers have published, and nodeDev the node's /dev. Source: kubernetes
// pkg/volume/util/operationexecutor (GenerateMapVolumeFunc), pkg/volume/csi/csi_block.go (getPublishDir).
func (p *Pods) ClaimDevice(pod, devices, nodeDev string) (*os.File, uint64, error) {
	kind, name, err := p.onlyVolume(pod, "volumeDevices")
	if err != nil {
		return nil, 0, err
	}
	links, err := p.open(pod, filepath.Join("volumeDevices", kind), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = links.Close() }()
	// Without a watch, the removal is found out later.
	_, _ = unix.InotifyAddWatch(p.links, podprocess.Reopen(links), unix.IN_DELETE|unix.IN_MOVED_FROM)
	link, err := podprocess.OpenAt(links, name, unix.O_PATH|unix.O_NOFOLLOW, podprocess.Beneath)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = link.Close() }()
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", buffer)
	if err != nil {
		return nil, 0, fmt.Errorf("find the device of the claim of attachment Pod %s: %w", pod, err)
	}
	// Both directories are the node's, and may have links.
	target, base := string(buffer[:n]), devices
	_, below, found := strings.Cut(target, "/"+publishedDevices+"/")
	if !found {
		base = nodeDev
		if below, found = strings.CutPrefix(target, "/dev/"); !found {
			return nil, 0, brokerapi.Refused(
				"the claim of attachment Pod %s has its device at %.256q, and not in /dev or from a CSI driver", pod, target)
		}
	}
	dir, err := openDir(base)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = dir.Close() }()
	device, err := podprocess.OpenAt(dir, below, unix.O_PATH, unix.RESOLVE_BENEATH)
	if err != nil {
		return nil, 0, fmt.Errorf("find the device of the claim of attachment Pod %s: %w", pod, err)
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(device.Fd()), &stat)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		err = brokerapi.Refused("the claim of attachment Pod %s is no block device", pod)
	}
	if err != nil {
		_ = device.Close()
		return nil, 0, err
	}
	return device, stat.Rdev, nil
}

// publishedDevices is where the kubelet lets CSI drivers publish devices, below its root directory.
const publishedDevices = "plugins/kubernetes.io/csi/volumeDevices"

// PublishedDevices returns the directory with the devices that CSI drivers have published, given the kubelet's root
// directory.
func PublishedDevices(kubeletRoot string) string { return filepath.Join(kubeletRoot, publishedDevices) }

// onlyVolume returns the kind and the name of the one claim in a directory with volumes of a Pod.
func (p *Pods) onlyVolume(pod, dir string) (kind, name string, err error) {
	kinds, err := p.list(pod, dir)
	if err != nil {
		return "", "", err
	}
	claims := 0
	for _, k := range kinds {
		if slices.Contains(notClaims, k) {
			continue
		}
		names, err := p.list(pod, filepath.Join(dir, k))
		if err != nil {
			return "", "", err
		}
		if claims += len(names); len(names) > 0 {
			kind, name = k, names[0]
		}
	}
	if claims != 1 {
		return "", "", brokerapi.Refused("Pod %s has %d claims (%s), and an attachment Pod one", pod, claims, dir)
	}
	return kind, name, nil
}

func (p *Pods) list(pod, name string) ([]string, error) {
	dir, err := p.open(pod, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return podprocess.Names(dir, maxVolumes)
}
