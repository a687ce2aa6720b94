// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

const (
	// startDelay is added to the initial delay of a probe, in seconds, for the time before the guest starts. KubeVirt's
	// value.
	startDelay = 10
	// agentDelay is added to the timeout of a probe by the guest agent, in seconds, so that the probe reports a timeout of
	// the guest before the kubelet stops it. KubeVirt's value.
	agentDelay = 1
)

// probe returns the container's probe for a probe of the guest. Network probes do not change, because connections to
// the Pod's address reach the guest. Probes by the guest agent run a command of the launcher.
func probe(vmi *v1.VirtualMachineInstance, of *v1.Probe) *corev1.Probe {
	if of == nil {
		return nil
	}
	out := &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{HTTPGet: of.HTTPGet, TCPSocket: of.TCPSocket},
		InitialDelaySeconds: of.InitialDelaySeconds + startDelay,
		TimeoutSeconds:      of.TimeoutSeconds,
		PeriodSeconds:       of.PeriodSeconds,
		SuccessThreshold:    of.SuccessThreshold,
		FailureThreshold:    of.FailureThreshold,
	}
	if !usesAgent(of) {
		return out
	}
	timeout := max(of.TimeoutSeconds, 1)
	out.TimeoutSeconds = timeout + agentDelay
	command := []string{
		launcherpod.LauncherBinary, "probe", "--domain", launcherpod.DomainName(vmi.Namespace, vmi.Name),
		"--timeout-seconds", strconv.Itoa(int(timeout)),
	}
	if of.Exec != nil {
		command = append(append(command, "--"), of.Exec.Command...)
	}
	out.Exec = &corev1.ExecAction{Command: command}
	return out
}

// usesAgent reports whether a probe uses the guest agent.
func usesAgent(p *v1.Probe) bool { return p != nil && (p.Exec != nil || p.GuestAgentPing != nil) }

// probeProcesses returns how many processes for probes can run in the launcher Pod at a time. On the target of a
// migration, the first one is that of the startup probe, which every probe has.
func probeProcesses(vmi *v1.VirtualMachineInstance) int {
	n, probes := 0, 0
	for _, p := range []*v1.Probe{vmi.Spec.ReadinessProbe, vmi.Spec.LivenessProbe} {
		if p != nil {
			probes++
		}
		if usesAgent(p) {
			n++
		}
	}
	return max(n, min(probes, 1))
}

// launcherImageAnnotation is an annotation of launcher Pods that KubeVirt does not have. It has the configured image.
// Some admission plugins replace images, by a digest or the name of a mirror. If the replaced image were compared with
// the configuration, the Pod would always be outdated, and its guest migrated or evicted again and again.
const launcherImageAnnotation = "kubevirt.io/launcher-image"

// NoteLauncherImage records the launcher image of a new Pod in an annotation.
func NoteLauncherImage(pod *corev1.Pod) {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, launcherImageAnnotation, computeImage(pod))
}

// LauncherImage returns the launcher image that a Pod was created with.
func LauncherImage(pod *corev1.Pod) string {
	if image := pod.Annotations[launcherImageAnnotation]; image != "" {
		return image
	}
	return computeImage(pod)
}

func computeImage(pod *corev1.Pod) string {
	if compute := podstate.ComputeContainer(pod); compute != nil {
		return compute.Image
	}
	return ""
}

// selinuxContext matches the SELinux context of a container's files: its level has one to four categories, and no range
// of them. A node's agent that is hostile must not get Pods on other nodes that may read the files of all Pods, and
// Pods without categories could read each other's.
var selinuxContext = regexp.MustCompile(`^[^:]+:[^:]+:container_file_t:(s0:c[0-9]{1,4}(?:,c[0-9]{1,4}){0,3})$`)

// SELinuxLevel returns the level of an SELinux context, such as s0:c1,c2 of
// system_u:object_r:container_file_t:s0:c1,c2. It is empty if the runtime of the node does not label containers.
func SELinuxLevel(context string) string {
	if found := selinuxContext.FindStringSubmatch(context); found != nil {
		return found[1]
	}
	return ""
}
