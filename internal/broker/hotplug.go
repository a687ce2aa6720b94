// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/devicerule"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// attachVolume gives a launcher Pod the claim of an attachment Pod: the image of a claim with a file system, or all of
// it, is mounted in its directory for hotplugged disks, for a block device there is a device file that it may open.
func (b *Broker) attachVolume(pod string, a brokerapi.VolumeArguments) (server.Task, error) {
	t := b.inHotplugDir(pod, func(h *hotplugDir) (server.Output, error) {
		if err := b.expectAttachment(pod, a); err != nil {
			return server.Output{}, err
		}
		if !a.Block {
			open, name := b.Pods.ClaimImage, layout.HotplugDiskName(a.Volume, false)
			if a.Directory {
				open, name = b.Pods.ClaimDir, a.Volume
			}
			file, err := open(a.Attachment)
			if err != nil {
				return server.Output{}, err
			}
			defer func() { _ = file.Close() }()
			return server.Output{}, h.mount(name, file, a.Directory)
		}
		device, err := b.keepOpen(a.Attachment)
		if err != nil {
			return server.Output{}, err
		}
		if err := h.makeDevice(layout.HotplugDiskName(a.Volume, true), device); err != nil {
			return server.Output{}, err
		}
		return server.Output{}, b.setDevices(h, "", &device)
	})
	if a.Wait {
		t.Wait = func(ctx context.Context) error { return b.awaitContainer(ctx, pod, a) }
	}
	return t, errors.Join(checkVolume(a), pods.CheckUID(a.Attachment))
}

// awaitContainer returns when the container of an attachment Pod is started: the container runtime makes the file of
// its log then, in a directory that the kubelet makes. The kubelet has made the claim available to the Pod before.
// Source: kubernetes pkg/kubelet/kuberuntime/helpers.go (BuildContainerLogsDirectory); containerd opens the file when
// it starts a container.
func (b *Broker) awaitContainer(ctx context.Context, pod string, a brokerapi.VolumeArguments) error {
	namespace, _, err := pods.Name(b.PodLogsDir, pod)
	if err != nil {
		return err
	}
	logs := strings.Join([]string{namespace, layout.AttachmentPod(pod, a.Volume), a.Attachment}, "_")
	return pods.Until(ctx, func() error {
		files, err := os.ReadDir(filepath.Join(b.PodLogsDir, logs, layout.AttachmentContainer))
		if err == nil && len(files) == 0 {
			err = fs.ErrNotExist
		}
		return err
	})
}

// detachVolume takes from a launcher Pod what attachVolume has given it. The attachment Pod need not exist any more.
func (b *Broker) detachVolume(pod string, a brokerapi.VolumeArguments) (server.Task, error) {
	err := checkVolume(a)
	if a.Wait {
		err = brokerapi.Invalid("there is nothing to wait for")
	}
	if a.Attachment != "" {
		err = errors.Join(err, pods.CheckUID(a.Attachment))
	}
	return b.inHotplugDir(pod, func(h *hotplugDir) (server.Output, error) {
		if !a.Block {
			return server.Output{},
				errors.Join(h.unmount(layout.HotplugDiskName(a.Volume, false), false), h.unmount(a.Volume, true))
		}
		return server.Output{},
			errors.Join(b.setDevices(h, a.Attachment, nil), h.remove(layout.HotplugDiskName(a.Volume, true), false))
	}), err
}

func checkVolume(a brokerapi.VolumeArguments) error {
	if !layout.IsVolumeName(a.Volume) {
		return brokerapi.Invalid("%.64q is no name of a volume", a.Volume)
	}
	if a.Block && a.Directory {
		return brokerapi.Invalid("a block device has no directory")
	}
	return nil
}

// inHotplugDir returns a task in the directory of a launcher Pod with its hotplugged volumes.
func (b *Broker) inHotplugDir(pod string, do func(*hotplugDir) (server.Output, error)) server.Task {
	return b.ofLibvirtd(b.hotplug, pod, func(_ context.Context, libvirtd *os.File) (server.Output, error) {
		dir, err := b.openHotplug(pod, libvirtd)
		if err != nil {
			return server.Output{}, fmt.Errorf("open the directory for hotplugged volumes of launcher Pod %s: %w", pod, err)
		}
		defer func() { _ = dir.Close() }()
		return do(&hotplugDir{pod: pod, process: libvirtd, dir: dir})
	})
}

// expectAttachment returns an error unless a Pod is in the namespace of a launcher Pod, and has the name of the
// attachment Pod of that and of the volume. Who may create Pods of that name may also use the namespace's claims.
func (b *Broker) expectAttachment(pod string, a brokerapi.VolumeArguments) error {
	namespace, _, err := pods.Name(b.PodLogsDir, pod)
	if err != nil {
		return err
	}
	in, name, err := pods.Name(b.PodLogsDir, a.Attachment)
	if err != nil {
		return err
	}
	if in != namespace || name != layout.AttachmentPod(pod, a.Volume) {
		return brokerapi.Refused("Pod %s is not the attachment Pod of volume %s in launcher Pod %s", a.Attachment, a.Volume,
			pod)
	}
	return nil
}

// hotplugDir is the directory of a launcher Pod with its hotplugged volumes.
type hotplugDir struct {
	pod     string
	process *os.File
	dir     *os.File
}

// openHotplug opens the directory of a launcher Pod with its hotplugged volumes, as its libvirtd has it. It is the
// kubelet's emptyDir.
func (b *Broker) openHotplug(pod string, libvirtd *os.File) (*os.File, error) {
	root, err := podprocess.OpenRoot(libvirtd)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	made, err := b.Pods.EmptyDir(pod, layout.HotplugDisksVolume)
	if err != nil {
		return nil, err
	}
	defer func() { _ = made.Close() }()
	dir, err := root.OpenWithin(layout.HotplugDisksDir, ".", unix.S_IFDIR)
	if err != nil {
		return nil, err
	}
	if same, err := sameFile(dir, made); err != nil || !same {
		return nil, errors.Join(err, brokerapi.Refused("%s is not the kubelet's volume", layout.HotplugDisksDir), dir.Close())
	}
	return dir, nil
}

// openEntry opens an entry of the directory as a reference, and what is mounted on it unless resolve has
// RESOLVE_NO_XDEV.
func (h *hotplugDir) openEntry(name string, flags int, resolve uint64) (*os.File, error) {
	return podprocess.OpenAt(h.dir, name, flags|unix.O_NOFOLLOW, podprocess.Beneath|resolve)
}

// mount mounts a file or a directory on an entry of the directory, only in the Pod. Both are descriptors, so whatever
// the Pod does with the names in its directory meanwhile, the mount is that file, and is somewhere in the Pod.
func (h *hotplugDir) mount(name string, image *os.File, directory bool) error {
	switch mounted, err := h.mounted(name); {
	case err != nil:
		return err
	case mounted != nil:
		defer func() { _ = mounted.Close() }()
		same, err := sameFile(mounted, image)
		if err == nil && !same {
			err = fmt.Errorf("%s/%s has another file: detach that volume first", layout.HotplugDisksDir, name)
		}
		return err
	}
	if err := h.makePlace(name, directory); err != nil {
		return err
	}
	place, err := h.openEntry(name, unix.O_PATH, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return err
	}
	defer func() { _ = place.Close() }()
	tree, err := unix.OpenTree(int(image.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("bind the volume: %w", err)
	}
	defer func() { _ = unix.Close(tree) }()
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		return fmt.Errorf("bind the volume: %w", err)
	}
	return podprocess.InMounts(h.process, func() error {
		err := unix.MoveMount(tree, "", int(place.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		if err != nil {
			return fmt.Errorf("mount the volume in the launcher Pod: %w", err)
		}
		return nil
	})
}

// makePlace makes the entry on which a file or a directory is mounted, unless it exists.
func (h *hotplugDir) makePlace(name string, directory bool) error {
	if directory {
		if err := unix.Mkdirat(int(h.dir.Fd()), name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make %s/%s in the launcher Pod: %w", layout.HotplugDisksDir, name, err)
		}
		return nil
	}
	created, err := h.openEntry(name, unix.O_CREAT|unix.O_RDONLY|unix.O_NONBLOCK, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return err
	}
	return created.Close()
}

// mounted opens what is mounted on an entry of the directory, or returns nil.
func (h *hotplugDir) mounted(name string) (*os.File, error) {
	found, err := h.openEntry(name, unix.O_PATH, unix.RESOLVE_NO_XDEV)
	if err == nil {
		return nil, found.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.EXDEV):
		return h.openEntry(name, unix.O_PATH, 0)
	}
	return nil, err
}

// unmount removes the mount on an entry of the directory, and the entry. QEMU keeps a file that it has opened. What was
// written to a directory is on the disk of the claim by then: no other component can know when files that QEMU has
// closed are.
func (h *hotplugDir) unmount(name string, directory bool) error {
	for {
		mounted, err := h.mounted(name)
		if err != nil {
			return err
		}
		if mounted == nil {
			return h.remove(name, directory)
		}
		_ = mounted.Close()
		if directory {
			err = h.sync(name)
		}
		if err == nil {
			err = podprocess.InMounts(h.process, func() error {
				if err := unix.Fchdir(int(h.dir.Fd())); err != nil {
					return err
				}
				return unix.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			})
		}
		if err != nil {
			return fmt.Errorf("unmount %s in the launcher Pod: %w", name, err)
		}
	}
}

// sync waits until what was written to a directory that is mounted on an entry is on its disk.
func (h *hotplugDir) sync(name string) error {
	mounted, err := h.openEntry(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("syncfs", unix.Syncfs(int(mounted.Fd()))), mounted.Close())
}

// remove removes an entry of the directory, which is a directory or not.
func (h *hotplugDir) remove(name string, directory bool) error {
	flags := 0
	if directory {
		flags = unix.AT_REMOVEDIR
	}
	// A file in the place of a directory is none of the broker's.
	err := unix.Unlinkat(int(h.dir.Fd()), name, flags)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("remove %s/%s of the launcher Pod: %w", layout.HotplugDisksDir, name, err)
	}
	return nil
}

// makeDevice makes the file of a block device, which QEMU's user owns. Only a device rule lets the Pod open it.
func (h *hotplugDir) makeDevice(name string, d devicerule.Device) error {
	if found, err := h.openEntry(name, unix.O_PATH, unix.RESOLVE_NO_XDEV); err == nil {
		owner, err := ownerOf(found, d)
		_ = found.Close()
		if err == nil && owner == layout.QEMUUser {
			return nil
		}
	}
	if err := h.remove(name, false); err != nil {
		return err
	}
	if err := unix.Mknodat(int(h.dir.Fd()), name, unix.S_IFBLK|0o600, int(unix.Mkdev(d.Major, d.Minor))); err != nil {
		return fmt.Errorf("make the device file in the launcher Pod: %w", err)
	}
	made, err := h.openEntry(name, unix.O_PATH, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return err
	}
	defer func() { _ = made.Close() }()
	// The Pod may have moved another file here.
	if _, err := ownerOf(made, d); err != nil {
		return err
	}
	return unix.Fchownat(int(made.Fd()), "", layout.QEMUUser, layout.QEMUUser, unix.AT_EMPTY_PATH)
}

// ownerOf returns the owner of a device's file, or an error if it is another file.
func ownerOf(file *os.File, d devicerule.Device) (uint32, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return 0, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK || unix.Major(stat.Rdev) != d.Major || unix.Minor(stat.Rdev) != d.Minor {
		return 0, brokerapi.Refused("%s of the launcher Pod is another file", file.Name())
	}
	return stat.Uid, nil
}

func sameFile(a, b *os.File) (bool, error) {
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	if err := errors.Join(errA, errB); err != nil {
		return false, err
	}
	return os.SameFile(infoA, infoB), nil
}
