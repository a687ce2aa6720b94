// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// graceMargin is added to the guest's grace period for the Pod, in seconds. In that time the launcher destroys the guest, stops
// libvirtd and writes the termination message. KubeVirt's value.
const graceMargin = 30

// ErrNoLauncherImage means that the configuration has no launcher image. It is the only error of Build that does not need a
// change of the VMI.
var ErrNoLauncherImage = errors.New("no launcher image is configured: set --launcher-image of virt-controller")

// Build returns the launcher Pod of a VMI. An error, except ErrNoLauncherImage, means that no Pod can have what the spec
// requests.
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
func computeContainer(vmi *v1.VirtualMachineInstance, cfg Config, arguments []string, storage *storage) corev1.Container {
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

// podSecurity sets the launcher's user as owner of claims. The kubelet skips volumes whose root has this owner already, because
// a recursive change of ownership can take minutes.
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
// The Pod of a guest with NUMA passthrough does not conform: QEMU binds the memory of each cell with mbind, which the runtime's
// seccomp profile allows only with SYS_NICE in the bounding set. No process of the Pod gets the capability, because none is
// root. Source: containerd contrib/seccomp/seccomp_default.go.
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
