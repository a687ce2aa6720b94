// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

// GuestInfo is what the guest agent told, cleaned and capped.
type GuestInfo struct {
	OS         GuestOS
	Hostname   string
	Interfaces []GuestInterface
	// Omitted is how many more interfaces there were.
	Omitted int
}

// GuestOS describes the operating system in the guest.
type GuestOS struct {
	ID, Name, PrettyName, Version, VersionID, KernelRelease, KernelVersion, Machine string
}

// GuestInterface is a network interface as the guest sees it.
type GuestInterface struct {
	Name, MAC string
	IPs       []string
}

// GuestAgent is what the guest agent says about itself and its guest, cleaned and capped.
type GuestAgent struct {
	// Version is the agent's.
	Version string
	// Commands are those that it knows.
	Commands []GuestCommand
	// Timezone is the guest's: its name, if it has one, and its offset in seconds, as KubeVirt writes them.
	Timezone string
	// Info is what is in the VMI's status too.
	Info GuestInfo
	// Users are logged in, Filesystems mounted.
	Users       List[GuestUser]
	Filesystems List[GuestFilesystem]
	// Frozen says that the guest's file systems take no writes.
	Frozen bool
}

// GuestCommand is a command of the guest agent.
type GuestCommand struct {
	Name    string
	Enabled bool
}

// List is the beginning of a list that a guest told.
type List[T any] struct {
	Items []T
	// Omitted is how many more there were.
	Omitted int
}

// GuestUser is logged in.
type GuestUser struct {
	Name, Domain string
	// LoginTime is in seconds since 1970.
	LoginTime float64
}

// GuestFilesystem is mounted.
type GuestFilesystem struct {
	Name, Mountpoint, Type string
	UsedBytes, TotalBytes  int64
	Disks                  []GuestDisk
}

// GuestDisk is a disk under a file system.
type GuestDisk struct {
	Serial, Bus string
}
