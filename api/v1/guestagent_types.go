// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VirtualMachineInstanceGuestAgentInfo is the response of guestosinfo: what the guest agent reports. The guest is not
// trusted: it can report anything.
// +kubebuilder:object:root=true
type VirtualMachineInstanceGuestAgentInfo struct {
	metav1.TypeMeta `json:",inline"`
	// guestAgentVersion is the version of the agent.
	GAVersion string `json:"guestAgentVersion,omitempty"`
	// supportedCommands are the commands that the agent knows.
	// +listType=atomic
	SupportedCommands []GuestAgentCommandInfo `json:"supportedCommands,omitempty"`
	// hostname is the guest's name for itself.
	Hostname string `json:"hostname,omitempty"`
	// os is the guest's operating system.
	OS VirtualMachineInstanceGuestOSInfo `json:"os,omitempty"`
	// timezone is the guest's time zone: its name and its offset in seconds.
	Timezone string `json:"timezone,omitempty"`
	// userList are the users that are logged in.
	UserList []VirtualMachineInstanceGuestOSUser `json:"userList,omitempty"`
	// fsInfo are the mounted file systems.
	FSInfo VirtualMachineInstanceFileSystemInfo `json:"fsInfo,omitempty"`
	// fsFreezeStatus is frozen from a freeze to the thaw, and empty otherwise. It reports what was requested.
	FSFreezeStatus string `json:"fsFreezeStatus,omitempty"`
}

// GuestAgentCommandInfo is one command of the guest agent.
type GuestAgentCommandInfo struct {
	// name is the command.
	Name string `json:"name"`
	// enabled is true if the guest's administrator has not switched it off.
	Enabled bool `json:"enabled,omitempty"`
}

// VirtualMachineInstanceGuestOSUserList is the response of userlist.
// +kubebuilder:object:root=true
type VirtualMachineInstanceGuestOSUserList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstanceGuestOSUser `json:"items"`
}

// VirtualMachineInstanceGuestOSUser is a user that is logged in.
type VirtualMachineInstanceGuestOSUser struct {
	// userName is the user's name.
	UserName string `json:"userName"`
	// domain is the user's domain in Windows.
	Domain string `json:"domain,omitempty"`
	// loginTime is when the user logged in for the first time, in seconds since 1970 with fractions.
	LoginTime float64 `json:"loginTime,omitempty"`
}

// VirtualMachineInstanceFileSystemInfo are the mounted file systems of a guest.
type VirtualMachineInstanceFileSystemInfo struct {
	// disks are the file systems; the name is KubeVirt's.
	Filesystems []VirtualMachineInstanceFileSystem `json:"disks"`
}

// VirtualMachineInstanceFileSystemList is the response of filesystemlist.
// +kubebuilder:object:root=true
type VirtualMachineInstanceFileSystemList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstanceFileSystem `json:"items"`
}

// VirtualMachineInstanceFileSystem is a mounted file system.
type VirtualMachineInstanceFileSystem struct {
	// diskName is the block device in the guest.
	DiskName string `json:"diskName"`
	// mountPoint is where it is mounted.
	MountPoint string `json:"mountPoint"`
	// fileSystemType is its type, such as ext4.
	FileSystemType string `json:"fileSystemType"`
	// usedBytes is how much of it is used.
	UsedBytes int `json:"usedBytes"`
	// totalBytes is how large it is.
	TotalBytes int `json:"totalBytes"`
	// disk are the disks that it lies on.
	Disk []VirtualMachineInstanceFileSystemDisk `json:"disk,omitempty"`
}

// VirtualMachineInstanceFileSystemDisk is a disk under a file system.
type VirtualMachineInstanceFileSystemDisk struct {
	// serial is the disk's serial number.
	Serial string `json:"serial,omitempty"`
	// busType is how the guest sees it attached, such as virtio.
	BusType string `json:"busType"`
}
