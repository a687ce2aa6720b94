// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

// GuestInfo is a report of the guest agent. Its texts are sanitized and its lists capped.
type GuestInfo struct {
	OS         GuestOS
	Hostname   string
	Interfaces []GuestInterface
	// Omitted is how many interfaces exceeded the limit.
	Omitted int
}

// GuestOS describes the operating system in the guest.
type GuestOS struct {
	ID, Name, PrettyName, Version, VersionID, KernelRelease, KernelVersion, Machine string
}

// GuestInterface is a network interface as the guest agent reports it.
type GuestInterface struct {
	Name, MAC string
	IPs       []string
}

// GuestAgent is a full report of the guest agent, about itself too. Its texts are sanitized and its lists capped.
type GuestAgent struct {
	// Version is the agent's version.
	Version string
	// Commands are the agent's commands.
	Commands []GuestCommand
	// Timezone is the guest's time zone: its name, if it has one, and its offset in seconds, in KubeVirt's format.
	Timezone string
	// Info is the part that the VMI's status contains too.
	Info GuestInfo
	// Users are the users that are logged in, Filesystems those that are mounted.
	Users       List[GuestUser]
	Filesystems List[GuestFilesystem]
	// Frozen reports whether the guest's file systems are frozen.
	Frozen bool
}

// GuestCommand is a command of the guest agent.
type GuestCommand struct {
	Name    string
	Enabled bool
}

// List is a list from a guest, up to a limit.
type List[T any] struct {
	Items []T
	// Omitted is how many items exceeded the limit.
	Omitted int
}

// GuestUser is a user that is logged in.
type GuestUser struct {
	Name, Domain string
	// LoginTime is in seconds since 1970.
	LoginTime float64
}

// GuestFilesystem is a mounted file system.
type GuestFilesystem struct {
	Name, Mountpoint, Type string
	UsedBytes, TotalBytes  int64
	Disks                  []GuestDisk
}

// GuestDisk is a disk of a file system.
type GuestDisk struct {
	Serial, Bus string
}
