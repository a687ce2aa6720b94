// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package launcherpod names what a launcher Pod contains: volumes, mount paths, sockets and identities. The controller
// renders the Pod with these names, the domain refers to them, and the agent and the launcher find files and sockets by
// them. The package has no dependencies, so that virt-launcher stays small. Package layout has what virt-broker needs
// of it.
package launcherpod

import (
	"crypto/sha1" //nolint:gosec // see InstanceID
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// AppLabelValue is the value of the label kubevirt.io on a launcher Pod.
const AppLabelValue = "virt-launcher"

// ComputeContainer is the container that runs virt-launcher. Tools for KubeVirt select it by this name.
const ComputeContainer = layout.ComputeContainer

// ConsoleLogContainer writes the guest's serial console to its log, if that is configured. KubeVirt's name. Source:
// kubevirt.io/api core/v1, GuestConsoleLog.
const ConsoleLogContainer = "guest-console-log"

// LauncherBinary is the entry point of the launcher image.
const LauncherBinary = "/usr/bin/virt-launcher"

// TailBinary is the program of ConsoleLogContainer. KubeVirt's path.
const TailBinary = "/usr/bin/virt-tail"

// AwaitGuestCommand is the subcommand of the startup probe of a migration's target.
const AwaitGuestCommand = "await-guest"

// BindVolumesCommand is the subcommand of a Pod whose only purpose is that its volumes are bound.
const BindVolumesCommand = "bind-volumes"

// TranslationCacheMiB is the size of QEMU's cache of translated code when it emulates the CPU. QEMU's default is a
// quarter of the guest's memory, up to 1 GiB, which counts as the launcher Pod's memory without being part of its
// request. QEMU empties a full cache: a Debian boots in 219 s with 32 MiB, 176 s with 40, 130 s with 64 and 124 s with
// 96, and a small kernel with BusyBox in the same time with all of them. With this size a launcher Pod with 1 vCPU and
// 1 GiB, including the console's log, has an overhead of at most 128 MiB; KVM needs no such cache. Source: qemu
// accel/tcg/tcg-accel-ops.c and tcg/region.c (tcg_init, DEFAULT_CODE_GEN_BUFFER_SIZE).
const TranslationCacheMiB = 36

// PostCopyDevice grants QEMU the right to handle faults of its own memory, which post-copy needs: the Pod's seccomp
// profile does not allow the system call for it.
const PostCopyDevice = layout.PostCopyDevice

// QEMUUser is the UID and GID of all processes in the launcher Pod, as in KubeVirt.
const QEMUUser = layout.QEMUUser

// Names of the Pod's own volumes.
const (
	// SocketsVolume is the emptyDir that contains only the sockets to which the agent connects: libvirtd's and those of
	// USBSocketName and BackupSocketName.
	SocketsVolume = layout.SocketsVolume
	// RuntimeVolume is the emptyDir for everything that libvirtd and QEMU write at run time.
	RuntimeVolume = "libvirt-runtime"
	// EphemeralDisksVolume is the emptyDir for overlays, empty disks and cloud-init media.
	EphemeralDisksVolume = "ephemeral-disks"
	// ConsoleLogVolume is the emptyDir for the pipe to ConsoleLogContainer.
	ConsoleLogVolume = "console-log"
	// KernelBootVolume is the image volume with the kernel and the initrd.
	KernelBootVolume = "kernel-boot"
	// StateVolume is the claim for the persistent state of TPM and EFI.
	StateVolume = "vm-state"
)

// Directories inside the Pod.
const (
	// SocketsDir is where SocketsVolume is mounted.
	SocketsDir = "/var/run/kubevirt/sockets"
	// RuntimeDir is where RuntimeVolume is mounted.
	RuntimeDir = "/var/run/libvirt"
	// EphemeralDisksDir is where EphemeralDisksVolume is mounted, and the target of the storage pool.
	EphemeralDisksDir = "/var/run/kubevirt-ephemeral-disks"
	// TrackedDisksDir has the overlays of disks whose changed blocks are tracked. libvirt treats it as shared between
	// Pods, because the target of a migration has overlays of its own there, and the data is in the claims.
	TrackedDisksDir = layout.TrackedDisksDir
	// ConsoleLogDir is where ConsoleLogVolume is mounted, if the guest's console is logged.
	ConsoleLogDir = "/var/run/kubevirt-private/console-log"
	// ContainerDisksDir has one image volume per containerDisk beneath it.
	ContainerDisksDir = layout.ContainerDisksDir
	// KernelBootDir is where KernelBootVolume is mounted.
	KernelBootDir = layout.KernelBootDir
	// DisksDir has one filesystem volume (claim or host directory) per volume beneath it.
	DisksDir = layout.DisksDir
	// SecretsDir has one directory of projected Secrets per cloud-init volume beneath it.
	SecretsDir = "/var/run/kubevirt-private/secret" //nolint:gosec // a path, no secret
	// StateDir is where StateVolume is mounted. Its content has KubeVirt's names, so that claims of KubeVirt can be used.
	StateDir = layout.StateDir
	// FilesDir has one directory per ConfigMap, Secret, sysprep, downward API and service account volume beneath it.
	FilesDir = "/var/run/kubevirt-private/files"
	// CredentialsDir has one directory per Secret of access credentials beneath it.
	CredentialsDir = "/var/run/kubevirt-private/credentials" //nolint:gosec // a path, no credential
	// ImageDiskDir is the directory of a containerDisk image that contains the disk.
	ImageDiskDir = "disk"
	// DiskImage is the file of the disk in a filesystem claim.
	DiskImage = layout.DiskImage
)

// SharedStateEnv is set to StateDir if it is on a claim that other Pods use at the same time. KubeVirt's name for the
// list of such directories. Source: kubevirt/kubevirt pkg/virt-controller/services, template.go.
const SharedStateEnv = "SHARED_FILESYSTEM_PATHS"

// FirmwareUUIDEnv is set to the UUID of the guest's firmware, after which the directory with the TPM's state is named.
const FirmwareUUIDEnv = "VIREO_FIRMWARE_UUID"

// Directories beneath StateDir. Source: kubevirt/kubevirt pkg/storage/backend-storage.
const (
	// NVRAMState contains the EFI variables.
	NVRAMState = "nvram"
	// TPMState contains the TPM's state.
	TPMState = "swtpm"
	// AuthorityState contains the authority that signs the TPM's certificates.
	AuthorityState = "swtpm-localca"
)

// Files inside the Pod.
const (
	// LibvirtSocketName is the name of libvirtd's socket in SocketsVolume.
	LibvirtSocketName = layout.LibvirtSocketName
	// LibvirtSocket is libvirtd's socket as seen in the Pod.
	LibvirtSocket = SocketsDir + "/" + LibvirtSocketName
	// VirtqemudSocket is a link to LibvirtSocket. Scripts for KubeVirt name it in the URI of virsh. KubeVirt's path.
	VirtqemudSocket = RuntimeDir + "/virtqemud-sock"
	// TPMAuthorityDir contains the authority that signs the certificates of the guest's TPM. With StateVolume it is a link
	// to AuthorityState.
	TPMAuthorityDir = RuntimeDir + "/swtpm-localca"
	// ConsoleLockDir contains libvirt's lock of a console that is open. The image's /var/lock, which libvirt uses, is a
	// link to it.
	ConsoleLockDir = RuntimeDir + "/lock"
	// MigrationTLSDir contains the certificates of a migration while it runs. libvirt's configuration of QEMU names it,
	// and libvirtd does not start without it.
	MigrationTLSDir = RuntimeDir + "/migration-tls"
	// ConsoleFIFO is the pipe from the guest's serial console to virt-launcher.
	ConsoleFIFO = RuntimeDir + "/console.fifo"
	// ConsoleLogFIFO is the pipe from virt-launcher to ConsoleLogContainer.
	ConsoleLogFIFO = ConsoleLogDir + "/console"
	// SLICTable and MSDMTable are the files of a Secret that contain ACPI tables. KubeVirt's names.
	SLICTable = "slic.bin"
	MSDMTable = "msdm.bin"
	// MigrationTLSPool is the name of libvirt's storage pool on MigrationTLSDir.
	MigrationTLSPool = "migration-tls"
	// EphemeralPool is the name of libvirt's storage pool on EphemeralDisksDir.
	EphemeralPool = "ephemeral"
	// TrackedPool is the name of libvirt's storage pool on TrackedDisksDir.
	TrackedPool = "tracked"
)

// Names of interfaces in the Pod's network namespace.
const (
	// PrimaryInterface is the Pod's interface in the cluster's network.
	PrimaryInterface = "eth0"
	// BridgePrefix is the prefix of the bridge between a Pod interface and the guest's tap.
	BridgePrefix = layout.BridgePrefix
	// DisplacedSuffix is the suffix of a Pod interface whose address the guest has.
	DisplacedSuffix = "-nic"
)

// Ports of the Pod of a migration's target. KubeVirt's values (LibvirtDirectMigrationPort, LibvirtBlockMigrationPort).
const (
	FirstMigrationPort = 49152
	LastMigrationPort  = 49153
)

// ContainerDiskDir is the directory in the Pod where the image of a containerDisk is mounted.
func ContainerDiskDir(volume string) string { return path.Join(ContainerDisksDir, volume) }

// DiskDir is the directory in the Pod where a filesystem volume is mounted.
func DiskDir(volume string) string { return path.Join(DisksDir, volume) }

// BlockDevice is the path in the Pod of a claim with volumeMode Block.
func BlockDevice(volume string) string { return path.Join("/dev", volume) }

// NVRAMSuffix is the end of the name of a file with EFI variables. libvirt's and KubeVirt's.
const NVRAMSuffix = "_VARS.fd"

// NVRAMStateFile is the file in the Pod with the persistent EFI variables of a VMI.
func NVRAMStateFile(vmi string) string { return path.Join(StateDir, NVRAMState, vmi+NVRAMSuffix) }

// TPMStateDir is the directory in the Pod with the state of a persistent TPM, by the UUID of the guest's firmware.
func TPMStateDir(uuid string) string { return path.Join(StateDir, TPMState, uuid, "tpm2") }

// TPMStateFile is the file in TPMStateDir with the permanent state of a TPM 2.0. Source: swtpm
// src/swtpm/swtpm_nvstore_dir.c.
const TPMStateFile = "tpm2-00.permall"

// UserDataVolume is the Pod volume of a cloud-init volume's user data Secret.
func UserDataVolume(volume string) string { return suffixed(volume, layout.UserDataSuffix) }

// NetworkDataVolume is the Pod volume of a cloud-init volume's network data Secret.
func NetworkDataVolume(volume string) string { return suffixed(volume, layout.NetworkDataSuffix) }

// FilesVolume is the Pod volume with the files of a disk of the guest.
func FilesVolume(volume string) string { return suffixed(volume, layout.FilesSuffix) }

// VolumeFilesDir is where FilesVolume is mounted in the Pod. QEMU reads ACPI tables there. Of other files the guest
// gets a copy; they are mounted because the kubelet sets up no volume that no container mounts.
func VolumeFilesDir(volume string) string { return path.Join(FilesDir, volume) }

// CredentialsVolume is the Pod volume of a Secret of access credentials. The name of a Secret may be longer than that
// of a volume, and contain dots.
func CredentialsVolume(secret string) string {
	name := strings.ReplaceAll(secret, ".", "-")
	if name != secret || len(name) > layout.MaxVolumeName-len(layout.CredentialsSuffix) {
		return hashed(name, secret, layout.CredentialsSuffix)
	}
	return name + layout.CredentialsSuffix
}

// SecretDir is where the Secrets of a cloud-init volume are mounted in the Pod, as userdata and networkdata.
func SecretDir(volume string) string { return path.Join(SecretsDir, volume) }

// USBPorts is how many USB devices clients can attach to a guest at the same time.
const USBPorts = layout.USBPorts

// BackupSocketName is the name in SocketsVolume of the socket at which QEMU serves the disks of a backup, by the
// backup's UID.
func BackupSocketName(id string) string { return layout.BackupSocketName(id) }

// USBSocketName is the name in SocketsVolume of the socket of one of the guest's USBPorts, counted from 0.
func USBSocketName(port int) string { return layout.USBSocketName(port) }

// DomainName is the name of a VMI's libvirt domain, as in KubeVirt.
func DomainName(namespace, name string) string { return namespace + "_" + name }

// suffixed returns a volume's name with a suffix. A name that is too long is shortened and made unique by a hash.
func suffixed(volume, suffix string) string {
	if len(volume)+len(suffix) <= layout.MaxVolumeName {
		return volume + suffix
	}
	return hashed(volume, volume, suffix)
}

// hashed returns the start of a name, a hash of the full name, and a suffix.
func hashed(name, of, suffix string) string {
	sum := sha256.Sum256([]byte(of))
	suffix = "-" + hex.EncodeToString(sum[:4]) + suffix
	return name[:min(len(name), layout.MaxVolumeName-len(suffix))] + suffix
}

// Messages that virt-launcher logs as a guest starts. The benchmark finds them by this text.
const (
	LogConnected = "Connected to libvirtd"
	LogDefined   = "The domain is defined"
	LogGuestRuns = "The guest runs"
)

// Before a guest is frozen, that is recorded in the metadata of its running domain: it has to be thawed in time even if
// the process that froze it does not run any more.
const (
	// FreezeURI is the XML namespace of the record, FreezePrefix its prefix, FreezeTag its element.
	FreezeURI    = "https://github.com/vireo-project/vireo/freeze"
	FreezePrefix = "vireo"
	FreezeTag    = "frozen"
)

// FreezerBinary freezes and thaws the guest from inside the Pod, for the hooks of backup tools. KubeVirt's path.
const FreezerBinary = "/usr/bin/virt-freezer"

// FreezeNote is the element with the time until which the guest may be frozen. Zero means until a request to thaw it.
func FreezeNote(thaw time.Time) string {
	if thaw.IsZero() {
		return "<" + FreezeTag + "/>"
	}
	return "<" + FreezeTag + " thaw='" + thaw.UTC().Format(time.RFC3339) + "'/>"
}

// An attachment Pod has the claim of one hotplugged volume, so that the kubelet attaches it to the node of the launcher
// Pod.
const (
	// AttachmentLabelValue is the value of the label kubevirt.io on an attachment Pod. KubeVirt's.
	AttachmentLabelValue = "hotplug-disk"
	// AttachmentUserAnnotation is on an attachment Pod and contains the UID of the VMI that it is for. KubeVirt has no
	// label for it: the label kubevirt.io/created-by is for launcher Pods, which others find by it.
	AttachmentUserAnnotation = "kubevirt.io/hotplug-vmi-uid"
	// AttachmentContainer is the only container of an attachment Pod. KubeVirt's name.
	AttachmentContainer = layout.AttachmentContainer
	// AttachmentPrefix is the prefix of the names of attachment Pods. KubeVirt's.
	AttachmentPrefix = "hp-volume-"
	// HoldArgument makes TailBinary wait until it is stopped. If the path of a disk image follows, with the size of the
	// disk, the bytes to keep free on the file system, and by how many percent the image may be smaller, it creates the
	// image first unless there is one. KubeVirt's attachment Pods serve a socket.
	HoldArgument = "--hold"
	// AttachmentDevicesDir has a directory per volume with the device of a claim with volumeMode Block. KubeVirt's path.
	AttachmentDevicesDir = "/path"
)

// AttachmentDevice is the path in the attachment Pod of a claim with volumeMode Block. KubeVirt's path.
func AttachmentDevice(volume, claimUID string) string {
	return path.Join(AttachmentDevicesDir, volume, claimUID)
}

// AttachmentDir is the directory in the attachment Pod where a claim with a file system is mounted. KubeVirt's path,
// unless the image has a directory of that name.
func AttachmentDir(volume string) string {
	switch volume {
	case "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "path", "proc", "root",
		"run", "sbin", "srv", "sys",
		"tmp", "usr", "var":
		return path.Join(AttachmentDevicesDir, volume)
	}
	return path.Join("/", volume)
}

const (
	// HotplugDisksVolume is the emptyDir into which hotplugged volumes are mounted. KubeVirt's name.
	HotplugDisksVolume = layout.HotplugDisksVolume
	// HotplugDisksDir is where HotplugDisksVolume is mounted. KubeVirt's path.
	HotplugDisksDir = layout.HotplugDisksDir
)

// AttachmentPod returns the name of the attachment Pod of a volume in a launcher Pod. It is a function of both, so that
// a stale cache cannot lead to a second Pod, and virt-broker, which knows the names of Pods only, can check for which
// launcher one was made.
func AttachmentPod(launcher, volume string) string { return layout.AttachmentPod(launcher, volume) }

// HotplugDisk is the path of a hotplugged volume in the launcher Pod.
func HotplugDisk(volume string, block bool) string {
	return layout.HotplugDisksDir + "/" + layout.HotplugDiskName(volume, block)
}

const (
	// maxInstanceID is the length of a DNS label (RFC 1035).
	maxInstanceID = 63
	// instanceHashLength is the number of digits of the hash at the end of a shortened name.
	instanceHashLength = 8
)

// InstanceID is the value of the label vmi.kubevirt.io/id of the Pod of a VMI: the name of the VMI, or the start of a
// long name and a hash. Source: kubevirt/kubevirt pkg/apimachinery, CalculateVirtualMachineInstanceID.
func InstanceID(name string) string {
	if len(name) <= maxInstanceID {
		return name
	}
	sum := sha1.Sum([]byte(name)) //nolint:gosec // KubeVirt's hash; it distinguishes names and protects nothing
	return name[:maxInstanceID-instanceHashLength-1] + "-" + hex.EncodeToString(sum[:])[:instanceHashLength]
}

// Outcome is what virt-launcher writes as its termination message, as one line of JSON. The exit code reports whether
// the guest succeeded (0) or failed; the outcome says why. A hostile guest may control the launcher: readers cap the
// size, and use the outcome for this VMI only.
type Outcome struct {
	// Reason is one of the Outcome constants.
	Reason string `json:"reason"`
	// Message explains the reason to users.
	Message string `json:"message"`
	// Stopped reports whether the launcher was requested to stop before the guest ended.
	Stopped bool `json:"stopped,omitempty"`
}

// Reasons of an Outcome.
const (
	// OutcomeShutdown means that the guest powered off, by itself or on request.
	OutcomeShutdown = "GuestShutdown"
	// OutcomeMigrated means that libvirt has migrated the guest to another Pod: it can never run in this one again.
	OutcomeMigrated = "GuestMigrated"
	// OutcomeDestroyed means that the guest was requested to shut down and was destroyed when its grace period ended.
	OutcomeDestroyed = "GracePeriodExpired"
	// OutcomeNotStarted means that the launcher was stopped before any guest ran.
	OutcomeNotStarted = "NotStarted"
	// OutcomeCrashed means that QEMU exited without a request to stop.
	OutcomeCrashed = "GuestCrashed"
	// OutcomePanicked means that the guest's kernel panicked.
	OutcomePanicked = "GuestPanicked"
	// OutcomeKilled means that the domain was destroyed without a request to stop it.
	OutcomeKilled = "GuestDestroyed"
	// OutcomeLibvirtFailed means that libvirtd exited or never became ready.
	OutcomeLibvirtFailed = "LibvirtFailed"
	// OutcomeInternal means that virt-launcher could not do its work.
	OutcomeInternal = "LauncherFailed"
)

// While an annotation of the VMI pauses probes by guestAgentPing, that is recorded in the metadata of its running
// domain: the kubelet runs the probe as a process in the Pod, which can query libvirtd only.
const (
	// ProbesURI is the XML namespace of the record, ProbesPrefix its prefix, ProbesTag its element.
	ProbesURI    = "https://github.com/vireo-project/vireo/probes"
	ProbesPrefix = "probes"
	ProbesTag    = "paused"
	// ProbesNote is the element that marks probes as paused.
	ProbesNote = "<" + ProbesTag + "/>"
)

// utilityVolumesDir is where volumes that are no disks are mounted while the guest runs. KubeVirt's path.
const utilityVolumesDir = "/var/run/kubevirt/hotplug-disks"

// UtilityVolumeDir is where the file system of a utility volume is mounted.
func UtilityVolumeDir(volume string) string { return path.Join(utilityVolumesDir, volume) }

// The files that the launcher's command capabilities writes, and the node agent reads: what libvirt reports of the
// node, of domains on it, and of the CPU of a guest with the model host-model, with all its features.
const (
	HostCapabilities   = "capabilities.xml"
	DomainCapabilities = "domcapabilities.xml"
	SupportedFeatures  = "supported_features.xml"
)
