// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func checkProbes(c *check) {
	onPodNetwork := false
	for i := range c.spec.Networks {
		onPodNetwork = onPodNetwork || c.spec.Networks[i].Pod != nil
	}
	// A VM's template with neither networks nor interfaces gets the Pod's network at its start.
	devices := &c.spec.Domain.Devices
	if len(c.spec.Networks) == 0 && len(devices.Interfaces) == 0 && enabled(devices.AutoattachPodInterface) {
		onPodNetwork = true
	}
	c.probe(c.at("readinessProbe"), c.spec.ReadinessProbe, onPodNetwork)
	c.probe(c.at("livenessProbe"), c.spec.LivenessProbe, onPodNetwork)
}

func (c *check) probe(p *field.Path, probe *v1.Probe, onPodNetwork bool) {
	if probe == nil {
		return
	}
	n := 0
	for _, set := range []bool{probe.HTTPGet != nil, probe.TCPSocket != nil, probe.Exec != nil,
		probe.GuestAgentPing != nil} {
		if set {
			n++
		}
	}
	switch {
	case n > 1:
		c.invalid(p, "several handlers", "%s must have exactly one probe type set", p)
	case n == 0:
		c.required(p, "either %s, %s or %s must be set if a %s is specified",
			p.Child("tcpSocket"), p.Child("exec"), p.Child("httpGet"), p)
	}
	if onPodNetwork {
		return
	}
	if probe.HTTPGet != nil {
		c.forbidden(p.Child("httpGet"), "%s is only allowed if the Pod Network is attached", p.Child("httpGet"))
	}
	if probe.TCPSocket != nil {
		c.forbidden(p.Child("tcpSocket"), "%s is only allowed if the Pod Network is attached", p.Child("tcpSocket"))
	}
}
