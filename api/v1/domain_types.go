// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// DomainSpec is the machine that the guest sees.
type DomainSpec struct {
	// resources are the CPU and memory that the scheduler sets aside for the guest. Default: computed from the guest's
	// size. Set by the user.
	Resources ResourceRequirements `json:"resources,omitempty"`
	// cpu is the number, the arrangement and the model of the CPUs. Default: one CPU of the cluster's model.
	// +optional
	CPU *CPU `json:"cpu,omitempty"`
	// memory is the guest's memory. Default: from resources.
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// machine is the machine type. Default: the cluster's, q35 on amd64.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// firmware is how the guest boots and how it is identified.
	// +optional
	Firmware *Firmware `json:"firmware,omitempty"`
	// clock is the guest's clock and its timers. Default: UTC and the machine's timers.
	// +optional
	Clock *Clock `json:"clock,omitempty"`
	// features are features of the machine. Default: ACPI.
	// +optional
	Features *Features `json:"features,omitempty"`
	// devices are the guest's devices.
	Devices Devices `json:"devices"`
	// ioThreadsPolicy defines how disks share I/O threads: shared, auto or supplementalPool. Default: no I/O threads.
	// +optional
	IOThreadsPolicy *IOThreadsPolicy `json:"ioThreadsPolicy,omitempty"`
	// ioThreads are options of I/O threads.
	// +optional
	IOThreads *DiskIOThreads `json:"ioThreads,omitempty"`
	// chassis is the chassis that the firmware reports.
	// +optional
	Chassis *Chassis `json:"chassis,omitempty"`
	// launchSecurity encrypts the guest's memory. Default: none.
	// +optional
	LaunchSecurity *LaunchSecurity `json:"launchSecurity,omitempty"`
	// rebootPolicy defines what a reboot of the guest does: Reboot (the default) or Terminate, which ends the VMI.
	// +optional
	RebootPolicy *RebootPolicy `json:"rebootPolicy,omitempty"`
}

// ResourceRequirements are CPU and memory as the scheduler counts them.
type ResourceRequirements struct {
	// requests are what a node must have free for the guest.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// limits are what the launcher Pod may use at most.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// overcommitGuestOverhead leaves the overhead out of the requests, and keeps it in the limits. Default: false.
	OvercommitGuestOverhead bool `json:"overcommitGuestOverhead,omitempty"`
}

// Machine is a machine type.
type Machine struct {
	// type is its name, such as q35 or pc-q35-10.0.
	// +optional
	Type string `json:"type"`
}

// Chassis is the chassis that the firmware reports.
type Chassis struct {
	// manufacturer is the maker.
	Manufacturer string `json:"manufacturer,omitempty"`
	// version is the version.
	Version string `json:"version,omitempty"`
	// serial is the serial number.
	Serial string `json:"serial,omitempty"`
	// asset is the asset tag.
	Asset string `json:"asset,omitempty"`
	// sku is the stock keeping unit.
	Sku string `json:"sku,omitempty"`
}

// RebootPolicy defines what a reboot of the guest does.
// +kubebuilder:validation:Enum=Reboot;Terminate
type RebootPolicy string

// Values of RebootPolicy.
const (
	// RebootPolicyReboot resets the machine.
	RebootPolicyReboot RebootPolicy = "Reboot"
	// RebootPolicyTerminate ends the VMI, so that the next one starts with the VM's present spec.
	RebootPolicyTerminate RebootPolicy = "Terminate"
)

// IOThreadsPolicy defines how disks share I/O threads.
type IOThreadsPolicy string

// Values of IOThreadsPolicy.
const (
	// IOThreadsPolicyShared gives all disks one thread.
	IOThreadsPolicyShared IOThreadsPolicy = "shared"
	// IOThreadsPolicyAuto spreads the disks over a number of threads that follows the CPUs.
	IOThreadsPolicyAuto IOThreadsPolicy = "auto"
	// IOThreadsPolicySupplementalPool gives each disk all threads of a pool.
	IOThreadsPolicySupplementalPool IOThreadsPolicy = "supplementalPool"
)

// DiskIOThreads are options of I/O threads.
type DiskIOThreads struct {
	// supplementalPoolThreadCount is the number of threads of the pool.
	// +optional
	SupplementalPoolThreadCount *uint32 `json:"supplementalPoolThreadCount,omitempty"`
}

// LaunchSecurity encrypts the guest's memory. One member is set.
type LaunchSecurity struct {
	// sev uses AMD SEV.
	SEV *SEV `json:"sev,omitempty"`
	// snp uses AMD SEV-SNP.
	// +optional
	SNP *SEVSNP `json:"snp,omitempty"`
	// tdx uses Intel TDX.
	TDX *TDX `json:"tdx,omitempty"`
}

// SEV is AMD Secure Encrypted Virtualization.
type SEV struct {
	// policy is the guest's policy.
	Policy *SEVPolicy `json:"policy,omitempty"`
	// attestation has the guest's owner check the launch.
	// +optional
	Attestation *SEVAttestation `json:"attestation,omitempty"`
	// session is the owner's session blob in base64.
	Session string `json:"session,omitempty"`
	// dhCert is the owner's Diffie-Hellman key in base64.
	DHCert string `json:"dhCert,omitempty"`
}

// SEVPolicy is a guest's policy for SEV.
type SEVPolicy struct {
	// encryptedState encrypts registers too. Default: false.
	// +optional
	EncryptedState *bool `json:"encryptedState,omitempty"`
}

// SEVSNP is AMD SEV-SNP without options.
type SEVSNP struct{}

// SEVAttestation has no options.
type SEVAttestation struct{}

// TDX is Intel TDX without options.
type TDX struct{}

// CPU is the number, the arrangement and the model of a guest's CPUs.
type CPU struct {
	// cores is the number of cores of a socket. Default: 1.
	Cores uint32 `json:"cores,omitempty"`
	// sockets is the number of sockets. Default: from resources if no other field gives a number, otherwise 1.
	Sockets uint32 `json:"sockets,omitempty"`
	// maxSockets is the number of sockets up to which some can be added while the guest runs. Default: none can.
	MaxSockets uint32 `json:"maxSockets,omitempty"`
	// threads is the number of threads of a core. Default: 1.
	Threads uint32 `json:"threads,omitempty"`
	// model is host-model, host-passthrough or the name of a model that libvirt knows. Default: the cluster's,
	// host-model.
	// +optional
	Model string `json:"model,omitempty"`
	// features are features to add to the model or to take from it.
	// +optional
	Features []CPUFeature `json:"features,omitempty"`
	// dedicatedCpuPlacement gives each virtual CPU a CPU of its own. Default: false.
	// +optional
	DedicatedCPUPlacement bool `json:"dedicatedCpuPlacement,omitempty"`
	// numa shows the guest the node's NUMA layout.
	// +optional
	NUMA *NUMA `json:"numa,omitempty"`
	// isolateEmulatorThread gives QEMU's own threads one more dedicated CPU. Default: false.
	// +optional
	IsolateEmulatorThread bool `json:"isolateEmulatorThread,omitempty"`
	// realtime runs virtual CPUs with a realtime priority.
	// +optional
	Realtime *Realtime `json:"realtime,omitempty"`
}

// CPUFeature is a feature of a CPU.
type CPUFeature struct {
	// name is libvirt's name of the feature.
	Name string `json:"name"`
	// policy is force, require, optional, disable or forbid. Default: require.
	// +optional
	Policy string `json:"policy,omitempty"`
}

// NUMA is what the guest sees of the node's NUMA layout.
type NUMA struct {
	// guestMappingPassthrough shows it as it is.
	// +optional
	GuestMappingPassthrough *NUMAGuestMappingPassthrough `json:"guestMappingPassthrough,omitempty"`
}

// NUMAGuestMappingPassthrough has no options.
type NUMAGuestMappingPassthrough struct{}

// Realtime runs virtual CPUs with a realtime priority.
type Realtime struct {
	// mask chooses the virtual CPUs, such as 0-3,^1. Default: all.
	// +optional
	Mask string `json:"mask,omitempty"`
}

// Memory is a guest's memory.
type Memory struct {
	// hugepages backs memory by huge pages. Default: ordinary pages.
	// +optional
	Hugepages *Hugepages `json:"hugepages,omitempty"`
	// guest is what the guest sees. Default: the memory of resources.
	// +optional
	Guest *resource.Quantity `json:"guest,omitempty"`
	// maxGuest is up to what memory can be added while the guest runs. Default: none can.
	MaxGuest *resource.Quantity `json:"maxGuest,omitempty"`
	// reservedOverhead adds to the memory that is set aside beyond the guest's.
	// +optional
	ReservedOverhead *ReservedOverhead `json:"reservedOverhead,omitempty"`
}

// Hugepages backs memory by huge pages.
type Hugepages struct {
	// pageSize is the size of a page, such as 2Mi or 1Gi, which the node must offer.
	PageSize string `json:"pageSize,omitempty"`
}

// ReservedOverhead is memory beyond the guest's.
type ReservedOverhead struct {
	// addedOverhead is added to the computed overhead. Default: 0.
	// +optional
	AddedOverhead *resource.Quantity `json:"addedOverhead,omitempty"`
	// memLock defines whether all of it must be locked in memory: Required or NotRequired.
	// +optional
	// +kubebuilder:validation:Enum=NotRequired;Required
	MemLock *MemLockRequirement `json:"memLock,omitempty"`
}

// MemLockRequirement defines whether memory must be locked.
type MemLockRequirement string

// Values of MemLockRequirement.
const (
	// MemLockRequired: all memory, the overhead included, is locked.
	MemLockRequired MemLockRequirement = "Required"
	// MemLockNotRequired: nothing is locked for the sake of the overhead.
	MemLockNotRequired MemLockRequirement = "NotRequired"
)

// Firmware is how a guest boots and how it is identified.
type Firmware struct {
	// uuid is the machine's UUID. Default: one that follows from the VM's name, random for a VMI without a VM.
	UUID types.UID `json:"uuid,omitempty"`
	// bootloader is BIOS (the default) or EFI.
	// +optional
	Bootloader *Bootloader `json:"bootloader,omitempty"`
	// serial is the machine's serial number. Default: none.
	Serial string `json:"serial,omitempty"`
	// kernelBoot boots a kernel from an image instead of a disk's boot loader.
	// +optional
	KernelBoot *KernelBoot `json:"kernelBoot,omitempty"`
	// acpi adds ACPI tables.
	ACPI *ACPI `json:"acpi,omitempty"`
}

// Bootloader is the firmware that boots the guest. One member is set.
type Bootloader struct {
	// bios boots by BIOS, the default.
	// +optional
	BIOS *BIOS `json:"bios,omitempty"`
	// efi boots by EFI.
	// +optional
	EFI *EFI `json:"efi,omitempty"`
}

// BIOS is the BIOS's options.
type BIOS struct {
	// useSerial writes what the BIOS prints to the serial console. Default: false.
	// +optional
	UseSerial *bool `json:"useSerial,omitempty"`
}

// EFI is EFI's options.
type EFI struct {
	// secureBoot starts signed loaders only; needs features.smm. Default: true.
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`
	// persistent keeps EFI variables across starts. Default: false.
	// +optional
	Persistent *bool `json:"persistent,omitempty"`
}

// KernelBoot boots a kernel from an image.
type KernelBoot struct {
	// kernelArgs is the kernel's command line.
	KernelArgs string `json:"kernelArgs,omitempty"`
	// container is the image with kernel and initrd.
	Container *KernelBootContainer `json:"container,omitempty"`
}

// KernelBootContainer is an image with a kernel and an initrd. One of the paths is set.
type KernelBootContainer struct {
	// image is the image.
	Image string `json:"image"`
	// imagePullSecret names the Secret with the registry's credentials.
	// +optional
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
	// imagePullPolicy is Always, Never or IfNotPresent. Default: Always for the tag latest or none, otherwise
	// IfNotPresent.
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// kernelPath is the kernel's path in the image.
	// +optional
	KernelPath string `json:"kernelPath,omitempty"`
	// initrdPath is the initrd's path in the image.
	// +optional
	InitrdPath string `json:"initrdPath,omitempty"`
}

// ACPI adds tables from Secrets.
type ACPI struct {
	// slicNameRef names the volume of the Secret with a SLIC table.
	SlicNameRef string `json:"slicNameRef,omitempty"`
	// msdmNameRef names the volume of the Secret with an MSDM table.
	MsdmNameRef string `json:"msdmNameRef,omitempty"`
}
