// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"encoding/json"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// networkStatusAnnotation is the annotation of a Pod in which Multus lists the attached networks. Source: the Network Plumbing
// Working Group's standard.
const networkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// Limits for what is read from the annotation: its value is copied to the VMI, and others than Multus may write it.
const (
	maxNetworkStatus = 64 << 10
	maxNetworkIPs    = 16
)

// attachedNetworks returns the addresses of the Pod's interfaces by name, as Multus reports them. It ignores an annotation that
// it cannot read: the guest and the domain report interfaces too.
func attachedNetworks(pod *corev1.Pod) map[string][]string {
	text := pod.Annotations[networkStatusAnnotation]
	if text == "" || len(text) > maxNetworkStatus {
		return nil
	}
	var list []struct {
		Interface string   `json:"interface"`
		IPs       []string `json:"ips"`
		Default   bool     `json:"default"`
	}
	if json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	attached := map[string][]string{}
	for _, one := range list {
		name := one.Interface
		if name == "" && one.Default {
			name = launcherpod.PrimaryInterface
		}
		var ips []string
		for _, ip := range one.IPs {
			if address, err := netip.ParseAddr(ip); err == nil && address.Zone() == "" && len(ips) < maxNetworkIPs {
				ips = append(ips, address.String())
			}
		}
		attached[name] = ips
	}
	return attached
}
