// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// startDelay is added to a probe's initial delay for what comes before the guest's start, in seconds. KubeVirt's value.
	startDelay = 10
	// agentDelay is added to the timeout of a probe by the guest's agent, in seconds, so that it is the probe that says
	// that the guest took too long. KubeVirt's value.
	agentDelay = 1
)

// probe is the container's probe for one of the guest. What arrives at the Pod's address reaches the guest, so that probes
// by network are the kubelet's own. What asks the guest's agent goes through the launcher.
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
	if !asksAgent(of) {
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

// asksAgent says that a probe goes through the guest's agent.
func asksAgent(p *v1.Probe) bool { return p != nil && (p.Exec != nil || p.GuestAgentPing != nil) }

func agentProbes(vmi *v1.VirtualMachineInstance) int {
	n := 0
	for _, p := range []*v1.Probe{vmi.Spec.ReadinessProbe, vmi.Spec.LivenessProbe} {
		if asksAgent(p) {
			n++
		}
	}
	return n
}
