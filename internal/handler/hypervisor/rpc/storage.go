// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// maxVolumes bounds how many files of a directory are looked at.
	maxVolumes = 64
	// uploadChunk is below the largest packet of a stream. Source: libvirt src/rpc/virnetprotocol.x.
	uploadChunk = 128 << 10
	// allocatedPerSecond is how many bytes even slow storage takes in a second, and maxAllocated more than a volume has.
	allocatedPerSecond, maxAllocated = uint64(32 << 20), uint64(1 << 50)
)

// Pool returns the directory of the Pod as a storage pool with the volumes that lie in it now. The pool is made
// when there is none and lives as long as libvirtd.
func (c *Conn) Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error) {
	ctx, end := c.begin(ctx)
	defer end()
	found := &hypervisor.Pool{}
	err := c.call(ctx, actTimeout, "look at the directory "+dir, func(l *libvirt.Connect) error {
		pool, err := ensurePool(l, name, dir)
		if err != nil {
			return err
		}
		defer func() { _ = pool.Free() }()
		info, err := pool.GetInfo()
		if err != nil {
			return err
		}
		found.Available, found.Capacity = info.Available, info.Capacity
		found.Volumes, err = c.volumesOf(ctx, pool)
		return err
	})
	return found, err
}

func ensurePool(l *libvirt.Connect, name, dir string) (*libvirt.StoragePool, error) {
	pool, err := l.LookupStoragePoolByName(name)
	if err == nil {
		return pool, pool.Refresh(0)
	}
	if !isCode(err, libvirt.ERR_NO_STORAGE_POOL) {
		return nil, err
	}
	text, err := (&libvirtxml.StoragePool{
		Type:   "dir",
		Name:   name,
		Target: &libvirtxml.StoragePoolTarget{Path: dir},
	}).Marshal()
	if err != nil {
		return nil, err
	}
	// Transient: nothing of it is written to disk. Starting it lists its volumes.
	return l.StoragePoolCreateXML(text, 0)
}

func (c *Conn) volumesOf(ctx context.Context, pool *libvirt.StoragePool) ([]hypervisor.Volume, error) {
	var list []libvirt.StorageVol
	err := c.large(ctx, func() (err error) {
		list, err = pool.ListAllStorageVolumes(0)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		for i := range list {
			_ = list[i].Free()
		}
	}()
	volumes := make([]hypervisor.Volume, 0, min(len(list), maxVolumes))
	for i := range list[:min(len(list), maxVolumes)] {
		text, err := list[i].GetXMLDesc(0)
		if isCode(err, libvirt.ERR_NO_STORAGE_VOL) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var parsed libvirtxml.StorageVolume
		if err := hypervisor.ReadXML(ctx, text, &parsed); err != nil {
			return nil, fmt.Errorf("libvirtd described a volume in XML that cannot be read: %w", err)
		}
		if parsed.Type == "file" || parsed.Type == "block" {
			volumes = append(volumes, volumeOf(&parsed))
		}
	}
	return volumes, nil
}

func volumeOf(v *libvirtxml.StorageVolume) hypervisor.Volume {
	out := hypervisor.Volume{Name: v.Name}
	if v.Target != nil {
		out.Path = v.Target.Path
		if v.Target.Format != nil {
			out.Format = v.Target.Format.Type
		}
	}
	if v.Capacity != nil {
		// libvirt prints sizes in bytes.
		out.Capacity = v.Capacity.Value
	}
	if v.Allocation != nil {
		out.Allocation = v.Allocation.Value
	}
	if v.BackingStore != nil {
		out.BackingPath = v.BackingStore.Path
		if v.BackingStore.Format != nil {
			out.BackingFormat = v.BackingStore.Format.Type
		}
	}
	return out
}

// Create makes a sparse volume. One that exists is an error.
func (c *Conn) Create(ctx context.Context, pool string, v hypervisor.Volume) error {
	definition := &libvirtxml.StorageVolume{
		Name:       v.Name,
		Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: 0},
		Target:     &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: v.Format}},
	}
	if v.Capacity > 0 || v.BackingPath == "" {
		definition.Capacity = &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: v.Capacity}
	}
	if v.BackingPath != "" {
		// The format is said, never probed: a guest that writes a qcow2 header into a raw disk gains nothing.
		definition.BackingStore = &libvirtxml.StorageVolumeBackingStore{
			Path:   v.BackingPath,
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: v.BackingFormat},
		}
	}
	return c.createVolume(ctx, pool, definition)
}

func (c *Conn) createVolume(ctx context.Context, pool string, definition *libvirtxml.StorageVolume) error {
	text, err := definition.Marshal()
	if err != nil {
		return fmt.Errorf("write the volume's XML: %w", err)
	}
	return c.call(ctx, actTimeout, "make the volume "+definition.Name, func(l *libvirt.Connect) error {
		p, err := l.LookupStoragePoolByName(pool)
		if err != nil {
			return err
		}
		defer func() { _ = p.Free() }()
		volume, err := p.StorageVolCreateXML(text, 0)
		if err != nil {
			return err
		}
		return volume.Free()
	})
}

// lookUpVolume finds a volume of a pool. The caller frees it.
func lookUpVolume(l *libvirt.Connect, pool, name string) (*libvirt.StorageVol, error) {
	p, err := l.LookupStoragePoolByName(pool)
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Free() }()
	return p.LookupStorageVolByName(name)
}

// Resize makes a raw volume larger. With filled its space is taken at once, as that of the volume before.
func (c *Conn) Resize(ctx context.Context, pool, name string, bytes uint64, filled bool) error {
	return c.call(ctx, resizeTimeout(bytes, filled), "make the volume "+name+" larger", func(l *libvirt.Connect) error {
		volume, err := lookUpVolume(l, pool, name)
		if err != nil {
			return err
		}
		defer func() { _ = volume.Free() }()
		var flags libvirt.StorageVolResizeFlags
		if filled {
			flags |= libvirt.STORAGE_VOL_RESIZE_ALLOCATE
		}
		return volume.Resize(bytes, flags)
	})
}

// resizeTimeout bounds a Resize. A file system that cannot allocate has every block written by libvirtd.
func resizeTimeout(bytes uint64, filled bool) time.Duration {
	if !filled {
		return actTimeout
	}
	return actTimeout + time.Duration(min(bytes, maxAllocated)/allocatedPerSecond)*time.Second
}

// Upload writes a volume's content.
func (c *Conn) Upload(ctx context.Context, pool, name string, data []byte) error {
	return c.call(ctx, actTimeout, "write the volume "+name, func(l *libvirt.Connect) error {
		volume, err := lookUpVolume(l, pool, name)
		if err != nil {
			return err
		}
		defer func() { _ = volume.Free() }()
		stream, err := l.NewStream(0)
		if err != nil {
			return err
		}
		defer func() { _ = stream.Free() }()
		if err := volume.Upload(stream, 0, uint64(len(data)), 0); err != nil {
			return err
		}
		return send(stream, data)
	})
}

func send(stream *libvirt.Stream, data []byte) error {
	for len(data) > 0 {
		n, err := stream.Send(data[:min(len(data), uploadChunk)])
		if err != nil {
			_ = stream.Abort()
			return err
		}
		data = data[n:]
	}
	return stream.Finish()
}
