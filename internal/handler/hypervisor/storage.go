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
	FormatRaw   = "raw"
	FormatQCOW2 = "qcow2"
)

// Volume is a disk image, found or to be made.
type Volume struct {
	// Name is the file's name.
	Name string
	// Path is the file's path in the Pod. It is not needed to make one.
	Path string
	// Format is raw, qcow2 or what else libvirt found.
	Format string
	// Capacity is the size that a guest sees in bytes. 0 makes an overlay as large as the image below.
	Capacity uint64
	// Allocation is the space that it takes in its file system in bytes. It is not asked for when one is made.
	Allocation uint64
	// BackingPath and BackingFormat name the image below an overlay.
	BackingPath   string
	BackingFormat string
}
