// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package launcherpod names what the launcher Pod looks like from inside and from the node: volumes, mount
// paths, sockets and identities. The controller renders the Pod from it, the agent and the launcher find
// their way with it, and the domain refers to its files. It holds names only and imports nothing of ours.
package launcherpod

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strconv"
	"strings"
)

// ComputeContainer is the container that runs virt-launcher. KubeVirt's tools select it by this name.
const ComputeContainer = "compute"

// ConsoleLogContainer prints the guest's serial console, if that is to be logged, and nothing else. KubeVirt's name.
// Source: kubevirt.io/api core/v1, GuestConsoleLog.
const ConsoleLogContainer = "guest-console-log"

// LauncherBinary is the entry point of the launcher image.
const LauncherBinary = "/usr/bin/virt-launcher"

// TailBinary is the program of ConsoleLogContainer. KubeVirt's path.
const TailBinary = "/usr/bin/virt-tail"

// BindVolumesCommand is the subcommand of a Pod that only has its volumes bound.
const BindVolumesCommand = "bind-volumes"

// TranslationCacheMiB is the size of QEMU's cache of translated code when it emulates the CPU. QEMU itself takes a quarter
// of the guest's memory, up to 1 GiB, which counts as the launcher Pod's memory and which nobody has asked for. A cache
// that is full is thrown away and filled again: a Debian takes 219 s to boot with 32 MiB, 176 s with 40, 130 s with 64 and
// 124 s with 96, and a small kernel with BusyBox the same time with all of them. This is what fits into 128 MiB for all
// that a launcher Pod with 1 vCPU and 1 GiB needs, the console's log included; with KVM there is no such cache.
// Source: qemu accel/tcg/tcg-accel-ops.c and tcg/region.c (tcg_init, DEFAULT_CODE_GEN_BUFFER_SIZE).
const TranslationCacheMiB = 36

// PostCopyDevice is where QEMU gets the right to handle faults of its own memory from, which a post-copy needs: the Pod's seccomp
// profile has no system call for it. Linux has it since 6.1.
// Source: Documentation/admin-guide/mm/userfaultfd.rst of Linux, uffd_open in QEMU's util/userfaultfd.c.
const PostCopyDevice = "/dev/userfaultfd"

// QEMUUser is the UID and GID under which everything in the launcher Pod runs, as in KubeVirt.
const QEMUUser = 107

// Names of the Pod's own volumes.
const (
	// SocketsVolume is the emptyDir that holds the sockets to which the agent connects, and nothing else: libvirtd's and
	// those of USBSocketName.
	SocketsVolume = "sockets"
	// RuntimeVolume is the emptyDir for everything that libvirtd and QEMU write at run time.
	RuntimeVolume = "libvirt-runtime"
	// EphemeralDisksVolume is the emptyDir for overlays, empty disks and cloud-init media.
	EphemeralDisksVolume = "ephemeral-disks"
	// ConsoleLogVolume is the emptyDir for the pipe to ConsoleLogContainer.
	ConsoleLogVolume = "console-log"
	// KernelBootVolume is the image volume with the kernel and the initrd.
	KernelBootVolume = "kernel-boot"
	// StateVolume is the claim for the state of the machine that lasts: EFI variables and the TPM.
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
	// ConsoleLogDir is where ConsoleLogVolume is mounted. It is there if the guest's console is logged.
	ConsoleLogDir = "/var/run/kubevirt-private/console-log"
	// ContainerDisksDir has one image volume per containerDisk beneath it.
	ContainerDisksDir = "/var/run/kubevirt/container-disks"
	// KernelBootDir is where KernelBootVolume is mounted.
	KernelBootDir = "/var/run/kubevirt/kernel-boot"
	// DisksDir has one filesystem volume (claim or host directory) per volume beneath it.
	DisksDir = "/var/run/kubevirt-private/vmi-disks"
	// SecretsDir has one directory of projected Secrets per cloud-init volume beneath it.
	SecretsDir = "/var/run/kubevirt-private/secret" //nolint:gosec // a path, no secret
	// StateDir is where StateVolume is mounted. What lies in it is called as in KubeVirt, so that a claim from there fits.
	StateDir = "/var/run/kubevirt-private/vm-state"
	// FilesDir has one directory per ConfigMap, Secret, sysprep, downward API and service account volume beneath it.
	FilesDir = "/var/run/kubevirt-private/files"
	// CredentialsDir has one directory per Secret of access credentials beneath it.
	CredentialsDir = "/var/run/kubevirt-private/credentials" //nolint:gosec // a path, no credential
	// ImageDiskDir is the directory in a containerDisk image in which the disk lies.
	ImageDiskDir = "disk"
	// DiskImage is the file in a filesystem claim that holds the disk.
	DiskImage = "disk.img"
)

// SharedStateEnv tells virt-launcher that StateDir is on a claim that other Pods use at the same time: its value is StateDir then.
// KubeVirt's name for the list of such directories. Source: kubevirt/kubevirt pkg/virt-controller/services, template.go.
const SharedStateEnv = "SHARED_FILESYSTEM_PATHS"

// Directories beneath StateDir. Source: kubevirt/kubevirt pkg/storage/backend-storage.
const (
	// NVRAMState holds the EFI variables.
	NVRAMState = "nvram"
	// TPMState holds the TPM's state.
	TPMState = "swtpm"
	// AuthorityState holds the authority that signs the TPM's certificates.
	AuthorityState = "swtpm-localca"
)

// Files inside the Pod.
const (
	// LibvirtSocketName is the name of libvirtd's socket in SocketsVolume.
	LibvirtSocketName = "libvirt-sock"
	// LibvirtSocket is libvirtd's socket as seen in the Pod.
	LibvirtSocket = SocketsDir + "/" + LibvirtSocketName
	// TPMAuthorityDir holds the authority that signs the certificates of the guest's TPM. With StateVolume it is a link
	// to AuthorityState.
	TPMAuthorityDir = RuntimeDir + "/swtpm-localca"
	// ConsoleLockDir holds libvirt's lock of a console that is open. The image's /var/lock, which libvirt asks for, leads here.
	ConsoleLockDir = RuntimeDir + "/lock"
	// MigrationTLSDir holds the certificates of a migration while it goes on. libvirt's configuration of QEMU names it, and
	// libvirtd does not start without it.
	MigrationTLSDir = RuntimeDir + "/migration-tls"
	// ConsoleFIFO is the pipe from the guest's serial console to virt-launcher.
	ConsoleFIFO = RuntimeDir + "/console.fifo"
	// ConsoleLogFIFO is the pipe from virt-launcher to ConsoleLogContainer, for what of the console is to be logged.
	ConsoleLogFIFO = ConsoleLogDir + "/console"
	// SLICTable and MSDMTable are the files of a Secret that hold ACPI tables. KubeVirt's names.
	SLICTable = "slic.bin"
	MSDMTable = "msdm.bin"
	// MigrationTLSPool is the name of libvirt's storage pool on MigrationTLSDir.
	MigrationTLSPool = "migration-tls"
	// EphemeralPool is the name of libvirt's storage pool on EphemeralDisksDir.
	EphemeralPool = "ephemeral"
)

// Interfaces inside the Pod's network namespace.
const (
	// PrimaryInterface is the interface that the cluster's network gives to the Pod.
	PrimaryInterface = "eth0"
	// BridgePrefix starts the name of the bridge between a Pod interface and the guest's tap.
	BridgePrefix = "k6t-"
	// DisplacedSuffix ends the name of a Pod interface whose address moved into the guest.
	DisplacedSuffix = "-nic"
)

// Ports of the Pod at which a guest arrives. KubeVirt's values (LibvirtDirectMigrationPort, LibvirtBlockMigrationPort).
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

// NVRAMStateFile is the file in the Pod with the EFI variables of a VMI that last.
func NVRAMStateFile(vmi string) string { return path.Join(StateDir, NVRAMState, vmi+"_VARS.fd") }

// TPMStateDir is the directory in the Pod with the state of a TPM that lasts, by the UUID of the guest's firmware.
func TPMStateDir(uuid string) string { return path.Join(StateDir, TPMState, uuid, "tpm2") }

// UserDataVolume is the Pod volume of a cloud-init volume's user data Secret.
func UserDataVolume(volume string) string { return suffixed(volume, "-udata") }

// NetworkDataVolume is the Pod volume of a cloud-init volume's network data Secret.
func NetworkDataVolume(volume string) string { return suffixed(volume, "-ndata") }

// FilesVolume is the Pod volume whose files become a disk of the guest.
func FilesVolume(volume string) string { return suffixed(volume, "-files") }

// VolumeFilesDir is where FilesVolume is mounted in the Pod. QEMU reads ACPI tables there; of the others the guest gets a
// copy, and they are mounted because the kubelet makes no volume that no container mounts.
func VolumeFilesDir(volume string) string { return path.Join(FilesDir, volume) }

// CredentialsVolume is the Pod volume of a Secret of access credentials. A Secret's name may be longer than that of a
// volume, and have dots.
func CredentialsVolume(secret string) string {
	name := strings.ReplaceAll(secret, ".", "-")
	if name != secret || len(name) > maxVolumeName-len(credentialsSuffix) {
		return hashed(name, secret, credentialsSuffix)
	}
	return name + credentialsSuffix
}

// credentialsSuffix is KubeVirt's.
const credentialsSuffix = "-access-cred"

// SecretDir is where the Secrets of a cloud-init volume are mounted in the Pod, as userdata and networkdata.
func SecretDir(volume string) string { return path.Join(SecretsDir, volume) }

// USBPorts is how many USB devices clients can have in a guest at a time.
// Source: kubevirt.io/api core/v1, UsbClientPassthroughMaxNumberOf.
const USBPorts = 4

// USBSocketName is the name in SocketsVolume of the socket behind one of the guest's USBPorts, counted from 0. The name is
// KubeVirt's.
func USBSocketName(port int) string { return "virt-usbredir-" + strconv.Itoa(port) }

// DomainName is the name of a VMI's libvirt domain, as in KubeVirt.
func DomainName(namespace, name string) string { return namespace + "_" + name }

// maxVolumeName is the length of a DNS label, which the name of a Pod's volume is.
const maxVolumeName = 63

// suffixed is a volume's name with a suffix. What would be too long for a volume's name is shortened and told apart from
// others by a hash.
func suffixed(volume, suffix string) string {
	if len(volume)+len(suffix) <= maxVolumeName {
		return volume + suffix
	}
	return hashed(volume, volume, suffix)
}

// hashed is the beginning of a name, a hash of what it stands for, and a suffix.
func hashed(name, of, suffix string) string {
	sum := sha256.Sum256([]byte(of))
	suffix = "-" + hex.EncodeToString(sum[:4]) + suffix
	return name[:min(len(name), maxVolumeName-len(suffix))] + suffix
}

// What virt-launcher logs at the milestones of a start. The benchmark finds them by these words.
const (
	LogConnected = "Connected to libvirtd"
	LogDefined   = "The domain is defined"
	LogGuestRuns = "The guest runs"
)
