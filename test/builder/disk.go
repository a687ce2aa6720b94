// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package builder

import (
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// MakeDisk returns a disk of a kind of diskbus on a bus.
func MakeDisk(name, kind string, bus v1.DiskBus) v1.Disk {
	disk := v1.Disk{Name: name}
	switch kind {
	case diskbus.Disk:
		disk.Disk = &v1.DiskTarget{Bus: bus}
	case diskbus.LUN:
		disk.LUN = &v1.LunTarget{Bus: bus}
	case diskbus.CDRom:
		disk.CDRom = &v1.CDRomTarget{Bus: bus}
	}
	return disk
}
