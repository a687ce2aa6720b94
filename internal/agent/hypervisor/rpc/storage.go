// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

const (
	// maxVolumes is how many files of a directory are read.
	maxVolumes = 64
	// uploadChunk is less than the largest packet of a stream. Source: libvirt src/rpc/virnetprotocol.x.
	uploadChunk = 128 << 10
	// allocatedPerSecond is how many bytes even slow storage writes in a second, and maxAllocated more than the size of
	// any volume.
	allocatedPerSecond, maxAllocated = uint64(32 << 20), uint64(1 << 50)
)

// Pool returns a directory of the Pod as a storage pool with its current volumes. It creates the pool if there is
// none. A pool exists as long as libvirtd.
func (c *Conn) Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error) {
	ctx, end := c.startConversation(ctx)
	defer end()
	found := &hypervisor.Pool{}
	err := c.call(ctx, actTimeout, "read the directory "+dir, func(l *libvirt.Connect) error {
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
	// The pool is transient: nothing about it is written to disk. Starting it lists its volumes.
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
			return nil, fmt.Errorf("parse the XML of a volume: %w", err)
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

// Create creates a sparse volume. It fails if the volume exists.
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
		// The format is explicit, because with probing a guest could write a qcow2 header to a raw disk.
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
	return c.call(ctx, actTimeout, "create the volume "+definition.Name, func(l *libvirt.Connect) error {
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

// lookUpVolume returns a volume of a pool. The caller frees it.
func lookUpVolume(l *libvirt.Connect, pool, name string) (*libvirt.StorageVol, error) {
	p, err := l.LookupStoragePoolByName(pool)
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Free() }()
	return p.LookupStorageVolByName(name)
}

// Resize grows a raw volume. With filled its new space is allocated at once.
func (c *Conn) Resize(ctx context.Context, pool, name string, bytes uint64, filled bool) error {
	return c.call(ctx, resizeTimeout(bytes, filled), "grow the volume "+name, func(l *libvirt.Connect) error {
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

// resizeTimeout returns the timeout of a Resize. If the file system does not support allocation, libvirtd writes every
// block.
func resizeTimeout(bytes uint64, filled bool) time.Duration {
	if !filled {
		return actTimeout
	}
	return actTimeout + time.Duration(min(bytes, maxAllocated)/allocatedPerSecond)*time.Second
}

// Upload writes the content of a volume.
func (c *Conn) Upload(ctx context.Context, pool, name string, data []byte) error {
	return c.UploadFrom(ctx, pool, name, uint64(len(data)), bytes.NewReader(data))
}

// UploadFrom writes the content of a volume as it is read.
func (c *Conn) UploadFrom(ctx context.Context, pool, name string, size uint64, content io.Reader) error {
	return c.upload(ctx, pool, name, 0, size, content)
}

// UploadAt writes a part of a volume. The volume may end before it.
func (c *Conn) UploadAt(ctx context.Context, pool, name string, at uint64, data []byte) error {
	return c.upload(ctx, pool, name, at, uint64(len(data)), bytes.NewReader(data))
}

func (c *Conn) upload(ctx context.Context, pool, name string, at, size uint64, content io.Reader) error {
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
		if err := volume.Upload(stream, at, size, 0); err != nil {
			return err
		}
		return send(stream, content)
	})
}

func send(stream *libvirt.Stream, content io.Reader) error {
	chunk := make([]byte, uploadChunk)
	for {
		n, err := content.Read(chunk)
		for sent := 0; sent < n; {
			more, err := stream.Send(chunk[sent:n])
			if err != nil {
				_ = stream.Abort()
				return err
			}
			sent += more
		}
		switch {
		case errors.Is(err, io.EOF):
			return stream.Finish()
		case err != nil:
			_ = stream.Abort()
			return fmt.Errorf("read what to write to a volume: %w", err)
		}
	}
}
