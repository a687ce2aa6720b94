// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podspec builds launcher Pods. It is pure: its results depend on its arguments only, and it does not change
// them. Package launcherpod has the names of what is inside the Pod.
package podspec

import (
	"errors"
	"fmt"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// graceMargin is added to the guest's grace period for the Pod, in seconds. In that time the launcher destroys the
// guest, stops libvirtd and writes the termination message. KubeVirt's value.
const graceMargin = 30

// ErrNoLauncherImage means that the configuration has no launcher image. It is the only error of Build that does not
// need a change of the VMI.
var ErrNoLauncherImage = errors.New("no launcher image is configured: set --launcher-image of virt-controller")

// Build returns the launcher Pod of a VMI. An error, except ErrNoLauncherImage, means that no Pod can have what the
// spec requests.
func Build(vmi *v1.VirtualMachineInstance, cfg Config) (*corev1.Pod, error) {
	if err := check(vmi, cfg); err != nil {
		return nil, err
	}
	vmi = vmi.DeepCopy() // The Pod must not share memory with the VMI.
	storage, err := renderVolumes(vmi, cfg)
	if err != nil {
		return nil, err
	}
	arguments, err := launcherArguments(vmi, cfg)
	if err != nil {
		return nil, err
	}
	account, err := serviceAccount(vmi)
	if err != nil {
		return nil, err
	}
	meta, err := metadata(vmi, cfg)
	if err != nil {
		return nil, err
	}
	compute := computeContainer(vmi, cfg, arguments, storage)
	pod := &corev1.Pod{
		ObjectMeta: meta,
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{compute},
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To(GracePeriodSeconds(vmi) + graceMargin),
			EnableServiceLinks:            ptr.To(false),
			// Istio's sidecar authenticates with the account's token.
			AutomountServiceAccountToken: ptr.To(HasSidecar(meta.Labels)),
			ServiceAccountName:           account,
			SecurityContext:              podSecurity(cfg),
			ReadinessGates:               []corev1.PodReadinessGate{{ConditionType: v1.VirtualMachineUnpaused}},
			Hostname:                     Hostname(vmi),
			Subdomain:                    vmi.Spec.Subdomain,
			DNSPolicy:                    vmi.Spec.DNSPolicy,
			DNSConfig:                    vmi.Spec.DNSConfig,
			ImagePullSecrets:             storage.pullSecrets,
			ResourceClaims:               resourceClaims(vmi),
			Volumes:                      storage.volumes,
		},
	}
	if LogsConsole(vmi) {
		pod.Spec.Containers = append(pod.Spec.Containers, consoleLog(vmi, cfg))
	}
	if cfg.RuntimeClass != "" {
		pod.Spec.RuntimeClassName = ptr.To(cfg.RuntimeClass)
	}
	schedule(&pod.Spec, vmi, cfg)
	return pod, nil
}

// computeContainer is the container in which virt-launcher, libvirtd and QEMU run.
func computeContainer(
	vmi *v1.VirtualMachineInstance, cfg Config, arguments []string, storage *storage,
) corev1.Container {
	return corev1.Container{
		Name:            launcherpod.ComputeContainer,
		Image:           cfg.LauncherImage,
		ImagePullPolicy: cfg.ImagePullPolicy,
		Command:         []string{launcherpod.LauncherBinary},
		Args:            arguments,
		Env:             environment(vmi, cfg),
		Ports:           ports(vmi),
		Resources:       resources(vmi, cfg),
		SecurityContext: containerSecurity(vmi),
		VolumeMounts:    storage.mounts,
		VolumeDevices:   storage.devices,
		ReadinessProbe:  probe(vmi, vmi.Spec.ReadinessProbe),
		LivenessProbe:   probe(vmi, vmi.Spec.LivenessProbe),
		// A launcher that is killed writes no termination message. Then it is the end of the log.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

func check(vmi *v1.VirtualMachineInstance, cfg Config) error {
	switch {
	case vmi.UID == "":
		return fmt.Errorf("VirtualMachineInstance %s/%s has no UID", vmi.Namespace, vmi.Name)
	case cfg.LauncherImage == "":
		return ErrNoLauncherImage
	default:
		return errors.Join(checkReserved(vmi, cfg), checkAffinity(vmi, cfg))
	}
}

// GracePeriodSeconds returns how long the guest may take to shut down before it is destroyed.
func GracePeriodSeconds(vmi *v1.VirtualMachineInstance) int64 {
	return ptr.Deref(vmi.Spec.TerminationGracePeriodSeconds, v1.DefaultGracePeriodSeconds)
}

func launcherArguments(vmi *v1.VirtualMachineInstance, cfg Config) ([]string, error) {
	optional, err := interfaceArguments(vmi)
	if vmi.Spec.Subdomain != "" {
		optional = append(optional, "--subdomain", vmi.Spec.Subdomain)
	}
	if v := logLevel(vmi, cfg); v > usualVerbosity {
		optional = append(optional, "--v", strconv.FormatUint(v-usualVerbosity, 10))
	}
	if filters := libvirtLogFilters(vmi, cfg); filters != "" {
		optional = append(optional, "--libvirt-log-filters", filters)
	}
	return append([]string{
		"--name", vmi.Name,
		"--namespace", vmi.Namespace,
		"--uid", string(vmi.UID),
		"--grace-period-seconds", strconv.FormatInt(GracePeriodSeconds(vmi), 10),
	}, optional...), err
}

// podSecurity sets the launcher's user as owner of claims. The kubelet skips volumes whose root has this owner already,
// because a recursive change of ownership can take minutes.
func podSecurity(cfg Config) *corev1.PodSecurityContext {
	seccomp := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	if cfg.Seccomp != nil {
		seccomp = cfg.Seccomp.DeepCopy()
	}
	return &corev1.PodSecurityContext{
		RunAsUser:           ptr.To[int64](launcherpod.QEMUUser),
		RunAsGroup:          ptr.To[int64](launcherpod.QEMUUser),
		RunAsNonRoot:        ptr.To(true),
		FSGroup:             ptr.To[int64](launcherpod.QEMUUser),
		FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
		SeccompProfile:      seccomp,
	}
}

// allCapabilities is Kubernetes' name for all capabilities.
const allCapabilities corev1.Capability = "ALL"

// containerSecurity conforms to the restricted Pod Security level. NET_BIND_SERVICE is for the DHCP server on port 67.
//
// The Pod of a guest with NUMA passthrough does not conform: QEMU binds the memory of each cell with mbind, which the
// runtime's seccomp profile allows only with SYS_NICE in the bounding set. No process of the Pod gets the capability,
// because none is root. Source: containerd contrib/seccomp/seccomp_default.go.
func containerSecurity(vmi *v1.VirtualMachineInstance) *corev1.SecurityContext {
	capabilities := []corev1.Capability{"NET_BIND_SERVICE"}
	if cpu := vmi.Spec.Domain.CPU; cpu != nil && cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil {
		capabilities = append(capabilities, "SYS_NICE")
	}
	return &corev1.SecurityContext{
		RunAsUser:                ptr.To[int64](launcherpod.QEMUUser),
		RunAsGroup:               ptr.To[int64](launcherpod.QEMUUser),
		RunAsNonRoot:             ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false),
		ReadOnlyRootFilesystem:   ptr.To(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{allCapabilities}, Add: capabilities},
	}
}

// Config is the input of Build beside the VMI.
type Config struct {
	// LauncherImage is the image of the compute container.
	LauncherImage string
	// ImagePullPolicy is the pull policy of the launcher image. Empty means Kubernetes' default.
	ImagePullPolicy corev1.PullPolicy
	// Seccomp is the Pod's seccomp profile. Nil means the container runtime's.
	Seccomp *corev1.SeccompProfile
	// RuntimeClass is the Pod's runtime class. Empty means the cluster's.
	RuntimeClass string
	// Verbosity is the launcher's log level.
	Verbosity uint
	// UseEmulation runs the guest without KVM: the Pod requests neither /dev/kvm nor vhost-net, nor a node with a certain
	// CPU.
	UseEmulation bool
	// DefaultArchitecture is the architecture of a VMI without one.
	DefaultArchitecture string
	// CPUAllocationRatio is the number of vCPUs per requested CPU. Less than 1 means 1.
	CPUAllocationRatio int
	// CPURequest replaces the computed request of a VMI without one.
	CPURequest *resource.Quantity
	// MemoryOvercommit is the guest's memory in percent of its request. Less than 1 means 100.
	MemoryOvercommit int
	// AdditionalGuestMemoryOverheadRatio multiplies the overhead. Less than 1 means 1.
	AdditionalGuestMemoryOverheadRatio float64
	// ConsoleLogResources replace individual requests and limits of the console log's container.
	ConsoleLogResources corev1.ResourceRequirements
	// RestartsContainers reports whether the cluster supports the restart policy of a container: Kubernetes 1.35 does,
	// 1.33 refuses it.
	RestartsContainers bool
	// LimitCPU and LimitMemory report whether each container needs such a limit, even if the VMI has none: because of a
	// ResourceQuota in the namespace, or of the cluster's configuration.
	LimitCPU, LimitMemory bool
	// MemoryLimitRatio is the ratio of the limit by LimitMemory to the request. Less than 1 means 2.
	MemoryLimitRatio float64
	// SkipBackupHooks omits the hooks for backups, unless the VMI's annotation enables them.
	SkipBackupHooks bool
	// Live are the annotations and labels that are copied from the VMI while the Pod runs.
	Live LiveMetadata
	// NodeSelectors are added to the VMI's.
	NodeSelectors map[string]string
	// Claims has the claims by name of the VMI's volumes. The claim of a volume that it lacks is treated as a filesystem.
	Claims map[string]Claim
	// HotplugVolumes leaves hotpluggable volumes out of the launcher Pod: attachment Pods have them.
	HotplugVolumes bool
	// HotplugResources replace individual requests and limits of the container of attachment Pods.
	HotplugResources corev1.ResourceRequirements
	// ImageReserveBytes are kept free on the claim of an attachment Pod that gets a disk image.
	ImageReserveBytes uint64
	// ImageTolerateLessPercent is how much smaller than the claim such an image may be if there is less space.
	ImageTolerateLessPercent int
	// VolumeAffinities restrict the launcher Pod to the nodes that can use the hotpluggable volumes.
	VolumeAffinities []corev1.NodeSelector
	// NetworkResources has the resource names of the NetworkAttachmentDefinitions by name of the VMI's networks. The Pod
	// requests one of each.
	NetworkResources map[string]corev1.ResourceName
	// MigrationNetwork is the NetworkAttachmentDefinition of the network for migrations. Empty means the Pod network.
	MigrationNetwork types.NamespacedName
	// StateClaim is the name of the claim with the persistent state of the TPM and of EFI. Required for a VMI with such
	// state.
	StateClaim string
	// StateShared reports whether several Pods can use the claim at the same time.
	StateShared bool
}

// Claim describes a PersistentVolumeClaim.
type Claim struct {
	// Block reports whether the claim's volume mode is Block.
	Block bool
}

// Owner returns the controller reference of a Pod if it is a VirtualMachineInstance, and nil otherwise; labels do not
// matter. Only virt-controller may set such a reference (policy kubevirt-launcher-pods in config/admission).
func Owner(pod metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != v1.VirtualMachineInstanceGroupVersionKind.Kind {
		return nil
	}
	// Pods of earlier releases can have other versions of the group.
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != v1.GroupVersion.Group {
		return nil
	}
	return owner
}

// IsOf reports whether a Pod belongs to this VMI, and not to another one of the same name. It compares more than the
// UID, because a reference to an object of any kind can have that UID.
func IsOf(pod metav1.Object, vmi *v1.VirtualMachineInstance) bool {
	owner := Owner(pod)
	return owner != nil && pod.GetNamespace() == vmi.Namespace && owner.Name == vmi.Name && owner.UID == vmi.UID
}

// IsOrphanOf reports whether a Pod is a launcher Pod of this VMI that has lost its owner reference, for example by a
// deletion with --cascade=orphan and a restore. The labels prove it, because only virt-controller can set or change
// them on a Pod.
func IsOrphanOf(pod metav1.Object, vmi *v1.VirtualMachineInstance) bool {
	labels := pod.GetLabels()
	return metav1.GetControllerOf(pod) == nil && pod.GetNamespace() == vmi.Namespace &&
		labels[v1.AppLabel] == launcherpod.AppLabelValue && labels[v1.CreatedByLabel] == string(vmi.UID)
}

// kubeVirtLauncher is the program of the container compute in the launcher Pods that KubeVirt creates.
const kubeVirtLauncher = "virt-launcher-monitor"

// StartedByKubeVirt reports whether KubeVirt has created a launcher Pod.
func StartedByKubeVirt(pod *corev1.Pod) bool {
	compute := podstate.ComputeContainer(pod)
	return compute != nil && len(compute.Command) > 0 && path.Base(compute.Command[0]) == kubeVirtLauncher
}

// IsTargetOf reports whether a Pod is the target of a migration of a VMI with the same name. IsOf reports whether it is
// the current VMI with that name.
func IsTargetOf(pod metav1.Object, migration *v1.VirtualMachineInstanceMigration) bool {
	owner := Owner(pod)
	return owner != nil && pod.GetNamespace() == migration.Namespace && owner.Name == migration.Spec.VMIName &&
		pod.GetLabels()[v1.MigrationJobLabel] == string(migration.UID) &&
		pod.GetName() == targetPodName(owner.Name, owner.UID, migration.UID)
}
