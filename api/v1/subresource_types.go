// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bodies of the requests to subresources.kubevirt.io that change what a VM does. Those with apiVersion and kind are
// optional in KubeVirt's API: a request without a body has the defaults.

// StartOptions is the body of start.
type StartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// paused starts the guest paused, until it is unpaused. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// Keys and values of the data of a state change request (status.stateChangeRequests[].data).
const (
	// StartRequestDataPausedKey defines whether the guest starts paused.
	StartRequestDataPausedKey = "paused"
	// StartRequestDataPausedTrue is the value for a paused start.
	StartRequestDataPausedTrue = "true"
	// RequestDataRunStrategyKey is the run strategy of the VM when the request was made. It is not KubeVirt's.
	RequestDataRunStrategyKey = "runStrategy"
)

// StopOptions is the body of stop.
type StopOptions struct {
	metav1.TypeMeta `json:",inline"`
	// gracePeriod is how many seconds the guest has to shut down. Default: the VMI's terminationGracePeriodSeconds.
	// +optional
	GracePeriod *int64 `json:"gracePeriod,omitempty"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// RestartOptions is the body of restart.
type RestartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// gracePeriodSeconds may be 0, which does not wait for the guest to shut down. Default: the VMI's
	// terminationGracePeriodSeconds. No other value is taken.
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// PauseOptions is the body of pause.
type PauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// UnpauseOptions is the body of unpause.
type UnpauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// MigrateOptions is the body of migrate.
type MigrateOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
	// addedNodeSelector are labels that the target node must have besides what the VMI requests. A key that the VMI's own
	// nodeSelector has keeps the VMI's value.
	// +optional
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
}

// EvacuateCancelOptions is the body of evacuate/cancel.
type EvacuateCancelOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
	// evacuationNodeName is the node that the VMI no longer has to leave. Required.
	EvacuationNodeName string `json:"evacuationNodeName"`
}

// FreezeUnfreezeTimeout is the body of freeze.
type FreezeUnfreezeTimeout struct {
	// unfreezeTimeout is after how long the guest's file systems are thawed without a request. 0 is never.
	UnfreezeTimeout *metav1.Duration `json:"unfreezeTimeout"`
}

// ScreenshotOptions are the options of vnc/screenshot.
type ScreenshotOptions struct {
	// moveCursor moves the guest's mouse first, so that a screen saver gives way.
	MoveCursor bool `json:"moveCursor"`
}

// VSOCKOptions are the options of vsock.
type VSOCKOptions struct {
	// targetPort is the port in the guest.
	TargetPort uint32 `json:"targetPort"`
	// useTLS encrypts the connection up to the guest. Default: true.
	UseTLS *bool `json:"useTLS,omitempty"`
}

// GuestfsInfo is the image that virtctl guestfs runs, the response to guestfs. It is KubeVirt's type
// (kubevirt.io/client-go/kubecli, GuestfsInfo). The image is gsImage if that is set, and otherwise
// registry/imagePrefix+libguestfs-tools with the digest, or the tag if there is no digest.
type GuestfsInfo struct {
	// registry is the image's registry and path, without its name.
	Registry string `json:"registry"`
	// tag is the image's tag.
	Tag string `json:"tag"`
	// digest is the image's digest.
	Digest string `json:"digest"`
	// imagePrefix is what the image's name starts with.
	ImagePrefix string `json:"imagePrefix"`
	// gsImage is the whole reference of the image.
	GsImage string `json:"gsImage"`
}

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

// Bodies of the subresources under sev/, by which the owner of a guest on AMD SEV checks it before handing it secrets.

// SEVPlatformInfo is the response of sev/fetchcertchain: what identifies the node's processor.
// +kubebuilder:object:root=true
type SEVPlatformInfo struct {
	metav1.TypeMeta `json:",inline"`
	// pdh is the platform's Diffie-Hellman key, in base64.
	PDH string `json:"pdh,omitempty"`
	// certChain is the chain of certificates up to AMD's, in base64.
	CertChain string `json:"certChain,omitempty"`
}

// SEVMeasurementInfo is the response of sev/querylaunchmeasurement: what the processor measured of the guest.
// +kubebuilder:object:root=true
type SEVMeasurementInfo struct {
	metav1.TypeMeta `json:",inline"`
	// measurement is the measurement, in base64.
	Measurement string `json:"measurement,omitempty"`
	// apiMajor is the major version of the platform's firmware interface.
	APIMajor uint `json:"apiMajor,omitempty"`
	// apiMinor is the minor version of the platform's firmware interface.
	APIMinor uint `json:"apiMinor,omitempty"`
	// buildID is the build of the platform's firmware.
	BuildID uint `json:"buildID,omitempty"`
	// policy is the guest's policy, as bits.
	Policy uint `json:"policy,omitempty"`
	// loaderSHA is the SHA-256 of the guest's firmware.
	LoaderSHA string `json:"loaderSHA,omitempty"`
}

// SEVSessionOptions is the body of sev/setupsession: the owner's half of the key exchange.
type SEVSessionOptions struct {
	// session is the session, in base64.
	Session string `json:"session,omitempty"`
	// dhCert is the owner's Diffie-Hellman key, in base64.
	DHCert string `json:"dhCert,omitempty"`
}

// SEVSecretOptions is the body of sev/injectlaunchsecret.
type SEVSecretOptions struct {
	// header is what the processor needs to decrypt the secret, in base64.
	Header string `json:"header,omitempty"`
	// secret is the encrypted secret, in base64.
	Secret string `json:"secret,omitempty"`
}

// ObjectGraphNode is the response of objectgraph: an object, and those that it needs, for backup tools.
// +kubebuilder:object:root=true
type ObjectGraphNode struct {
	metav1.TypeMeta `json:",inline"`
	// objectReference names the object.
	ObjectReference corev1.TypedObjectReference `json:"objectReference"`
	// labels are the role of the object for the VM, such as storage or network.
	Labels map[string]string `json:"labels,omitempty"`
	// optional is true if the VM starts without the object.
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// children are the objects that this one needs.
	// +listType=atomic
	Children []ObjectGraphNode `json:"children,omitempty"`
}

// ObjectGraphOptions is the body of objectgraph.
type ObjectGraphOptions struct {
	// includeOptionalNodes also returns what the VM starts without. Default: true.
	IncludeOptionalNodes *bool `json:"includeOptionalNodes,omitempty"`
	// labelSelector leaves out nodes whose labels do not match. Default: all nodes.
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// ClusterProfilerRequest is the body of dump-cluster-profiler.
type ClusterProfilerRequest struct {
	// labelSelector picks components by their labels. Default: all.
	LabelSelector string `json:"labelSelector,omitempty"`
	// continue is the token of the page before. Default: the first page.
	Continue string `json:"continue,omitempty"`
	// pageSize is the maximum number of components in a response.
	PageSize int64 `json:"pageSize"`
}

// ClusterProfilerResults is the response of dump-cluster-profiler.
type ClusterProfilerResults struct {
	// componentResults are the profiles by component.
	ComponentResults map[string]ProfilerResult `json:"componentResults"`
	// continue is the token for the next page; empty on the last.
	Continue string `json:"continue,omitempty"`
}

// ProfilerResult are the profiles of one component.
type ProfilerResult struct {
	// pprofData are the profiles by name, in the format of pprof.
	PprofData map[string][]byte `json:"pprofData,omitempty"`
}
