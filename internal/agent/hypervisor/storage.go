// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

// Pool is a directory of the launcher Pod as a libvirt storage pool.
type Pool struct {
	// Available is the free space of its file system in bytes.
	Available uint64
	// Capacity is the size of its file system in bytes.
	Capacity uint64
	// Volumes are the disk images in it.
	Volumes []Volume
}

// Find returns the volume of a name, or nil.
func (p *Pool) Find(name string) *Volume {
	for i := range p.Volumes {
		if p.Volumes[i].Name == name {
			return &p.Volumes[i]
		}
	}
	return nil
}

// Formats of a volume.
const (
	FormatRaw = "raw"
	// FormatISO is what libvirt reports for an image with the signature of ISO 9660. Such an image is a raw one.
	FormatISO   = "iso"
	FormatQCOW2 = "qcow2"
)

// Volume is a disk image that exists or is to be created.
type Volume struct {
	// Name is the file's name.
	Name string
	// Path is the file's path in the Pod. It is not needed to create a volume.
	Path string
	// Format is raw, qcow2 or another format that libvirt found.
	Format string
	// Capacity is the size of the guest's disk in bytes. 0 creates an overlay of the size of its backing image.
	Capacity uint64
	// Allocation is the space in bytes that it uses in its file system. It is ignored when a volume is created.
	Allocation uint64
	// BackingPath and BackingFormat are the backing image of an overlay.
	BackingPath   string
	BackingFormat string
}
