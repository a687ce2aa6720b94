// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
)

// gatewayMAC is the bridge's hardware address with masquerade. It is the same in all Pods, so that the gateway of a guest that
// migrates keeps its address. Source: KubeVirt.
var gatewayMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0}

// ensureMasquerade connects the guest by NAT to the Pod's address. The Pod's interface does not change.
func ensureMasquerade(planned *Interface, settings *sysctls) (podState, error) {
	pod, err := readInterface(planned.PodInterface)
	if err != nil {
		return pod, err
	}
	if err := settings.forwardIPv4(); err != nil {
		return pod, err
	}
	name := podiface.Bridge(planned.PodInterface)
	bridge, err := ensureBridge(name, gatewayMAC, pod.mtu)
	if err != nil {
		return pod, err
	}
	// Connections inside the Pod to its loopback address are redirected to the guest.
	if err := settings.set("ipv4/conf/"+name+"/route_localnet", 1); err != nil {
		return pod, err
	}
	if err := ensureAddress(bridge, gateway(planned.IPv4), 0); err != nil {
		return pod, err
	}
	if pod.hasIPv6() {
		if err := settings.forwardIPv6(planned.PodInterface); err != nil {
			return pod, err
		}
		if err := ensureAddress(bridge, gateway(planned.IPv6), unix.IFA_F_NODAD); err != nil {
			return pod, err
		}
	}
	if err := ensureUp(bridge); err != nil {
		return pod, err
	}
	// Before the tap, so that the guest's first packet is translated.
	if err := ensureNAT(*planned, pod); err != nil {
		return pod, err
	}
	return pod, ensureTap(podiface.Tap(planned.PodInterface), planned.MultiQueue, pod.mtu, bridge)
}
