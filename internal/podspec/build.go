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

// graceMargin is what the Pod gets beyond the guest's grace period: time for the launcher to destroy the guest, to
// stop libvirtd and to say how it went. KubeVirt adds the same 30 seconds.
const graceMargin = 30

// ErrNoLauncherImage is returned while the configuration names no launcher image. Unlike the others it goes away
// without a change of the VMI.
var ErrNoLauncherImage = errors.New("no launcher image is configured: set --launcher-image of virt-controller")

// Build returns the launcher Pod of a VMI. An error means that the VMI asks for something that no Pod can give, so
// that trying again does not help.
func Build(vmi *v1.VirtualMachineInstance, cfg Config) (*corev1.Pod, error) {
	if err := check(vmi, cfg); err != nil {
		return nil, err
	}
	vmi = vmi.DeepCopy() // What the Pod takes over is its own.
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
			// Istio's sidecar shows who it is by the account's token.
			AutomountServiceAccountToken: ptr.To(HasSidecar(meta.Labels)),
			ServiceAccountName:           account,
			SecurityContext:              podSecurity(),
			ReadinessGates:               []corev1.PodReadinessGate{{ConditionType: v1.VirtualMachineUnpaused}},
			Hostname:                     hostname(vmi),
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
		// A launcher that is killed leaves no outcome: the end of its log has to do.
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

// GracePeriodSeconds is how long the guest has to shut down before it is destroyed.
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

// podSecurity lets claims be written by the launcher's user. Recursive ownership changes are skipped on volumes
// that have the right owner already: they can take minutes.
func podSecurity() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsUser:           ptr.To[int64](launcherpod.QEMUUser),
		RunAsGroup:          ptr.To[int64](launcherpod.QEMUUser),
		RunAsNonRoot:        ptr.To(true),
		FSGroup:             ptr.To[int64](launcherpod.QEMUUser),
		FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
		SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// allCapabilities is Kubernetes' word for all of them.
const allCapabilities corev1.Capability = "ALL"

// containerSecurity passes the restricted Pod Security level. NET_BIND_SERVICE is for DHCP's port 67.
//
// A guest with the node's NUMA cells does not pass it: QEMU binds the memory of each, and the runtime's seccomp profile
// has the call mbind only for containers that could have SYS_NICE. No process of the Pod gets the capability by that, as
// none is root. Source: containerd contrib/seccomp/seccomp_default.go.
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
