// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/podiface"
)

// gatewayMAC is the bridge's hardware address with masquerade. It is the same in all Pods, so that a guest that
// migrates finds its gateway as it knows it. KubeVirt's value.
var gatewayMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0}

// ensureMasquerade puts the guest behind the Pod's address. The Pod's interface stays as it is.
func ensureMasquerade(planned *Interface, settings *sysctls) (seen, error) {
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
	// Connections from inside the Pod to its loopback address are turned to the guest, and come back that way.
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
	// Before the tap: what the guest sends first is translated already.
	if err := ensureNAT(*planned, pod); err != nil {
		return pod, err
	}
	return pod, ensureTap(podiface.Tap(planned.PodInterface), planned.MultiQueue, pod.mtu, bridge)
}
