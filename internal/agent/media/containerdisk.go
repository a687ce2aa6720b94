// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"path"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// containerDisk creates a writable overlay on the disk in an image. If the guest has read-only access, it uses the
// image's file itself.
func (p *preparer) containerDisk(ctx context.Context, v *v1.Volume) (*domain.DiskFact, error) {
	image, err := p.imageFile(ctx, v)
	if err != nil {
		return nil, err
	}
	format, err := imageFormat(image)
	if err != nil {
		return nil, err
	}
	if p.readOnly(v.Name) {
		return &domain.DiskFact{Path: image.Path, Format: format, CapacityBytes: int64(image.Capacity)}, nil
	}
	return p.overlay(ctx, v.Name, image.Capacity, image.Path, format)
}

// imageFile finds the disk in a containerDisk's image: the named file, or the only one in /disk.
func (p *preparer) imageFile(ctx context.Context, v *v1.Volume) (*hypervisor.Volume, error) {
	mount := launcherpod.ContainerDiskDir(v.Name)
	dir, name := inImage(mount, launcherpod.ImageDiskDir), ""
	if v.ContainerDisk.Path != "" {
		dir, name = path.Split(inImage(mount, v.ContainerDisk.Path))
		dir = path.Clean(dir)
	}
	pool, err := p.storage.Pool(ctx, "image-"+v.Name, dir)
	if err != nil {
		return nil, err
	}
	if name != "" {
		if found := pool.Find(name); found != nil {
			return found, nil
		}
		return nil, invalid("image %s has no file %s", v.ContainerDisk.Image, v.ContainerDisk.Path)
	}
	switch len(pool.Volumes) {
	case 0:
		return nil, invalid("image %s has no file in /%s: put one disk image there or name it in containerDisk.path",
			v.ContainerDisk.Image, launcherpod.ImageDiskDir)
	case 1:
		return &pool.Volumes[0], nil
	default:
		return nil, invalid("image %s has %d files in /%s: name one of them in containerDisk.path",
			v.ContainerDisk.Image, len(pool.Volumes), launcherpod.ImageDiskDir)
	}
}

// imageFormat returns the format with which QEMU opens an image.
func imageFormat(image *hypervisor.Volume) (string, error) {
	if image.BackingPath != "" {
		return "", invalid("disk image %s has a backing file: flatten it with qemu-img convert", path.Base(image.Path))
	}
	switch image.Format {
	case hypervisor.FormatQCOW2:
		return hypervisor.FormatQCOW2, nil
	case hypervisor.FormatRaw, hypervisor.FormatISO:
		return hypervisor.FormatRaw, nil
	default:
		return "", invalid("disk image %s has the format %q: convert it to qcow2 or raw", path.Base(image.Path), image.Format)
	}
}

// readOnly reports whether the guest has read-only access to a volume.
func (p *preparer) readOnly(volume string) bool {
	for i := range p.vmi.Spec.Domain.Devices.Disks {
		d := &p.vmi.Spec.Domain.Devices.Disks[i]
		if d.Name != volume {
			continue
		}
		switch {
		case d.CDRom != nil:
			return d.CDRom.ReadOnly == nil || *d.CDRom.ReadOnly
		case d.LUN != nil:
			return d.LUN.ReadOnly
		case d.Disk != nil:
			return d.Disk.ReadOnly
		}
	}
	return false
}
