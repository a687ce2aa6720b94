// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/masquerade"
	"github.com/vireo-project/vireo/internal/specsupport"
)

var interfacesPath = field.NewPath("spec", "domain", "devices", "interfaces")

// interfaceArguments returns the launcher's arguments for its DHCP servers on Pod interfaces.
func interfaceArguments(vmi *v1.VirtualMachineInstance) ([]string, error) {
	networks := map[string]*v1.Network{}
	for i := range vmi.Spec.Networks {
		networks[vmi.Spec.Networks[i].Name] = &vmi.Spec.Networks[i]
	}
	var out []string
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		if iface.State == v1.InterfaceStateAbsent {
			continue
		}
		network := networks[iface.Name]
		if network == nil || network.Pod == nil && network.Multus == nil {
			return nil, fmt.Errorf("interface %s: only an interface on the Pod network or on one of Multus can be connected",
				iface.Name)
		}
		argument, err := interfaceArgument(iface, network)
		if err != nil {
			return nil, err
		}
		options, err := dhcpArguments(interfacesPath.Index(i), iface, PodInterface(network))
		if err != nil {
			return nil, err
		}
		out = append(append(out, "--interface", argument), options...)
	}
	return out, nil
}

func interfaceArgument(iface *v1.Interface, network *v1.Network) (string, error) {
	switch {
	case iface.Masquerade != nil && network.Pod != nil:
		ipv4, err := masquerade.IPv4(network.Pod.VMNetworkCIDR)
		if err != nil {
			return "", fmt.Errorf("network %s: vmNetworkCIDR %w", network.Name, err)
		}
		ipv6, err := masquerade.IPv6(network.Pod.VMIPv6NetworkCIDR)
		if err != nil {
			return "", fmt.Errorf("network %s: vmIPv6NetworkCIDR %w", network.Name, err)
		}
		return strings.Join([]string{launcherpod.PrimaryInterface, "masquerade", ipv4.String(), ipv6.String()}, ","), nil
	case iface.Bridge != nil:
		return PodInterface(network) + ",bridge", nil
	default:
		return "", fmt.Errorf("interface %s: its binding is neither masquerade on the Pod network nor bridge", iface.Name)
	}
}

// ports returns the guest's ports as container ports. They only make names for Services: other ports are reachable as
// well.
func ports(vmi *v1.VirtualMachineInstance) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	for _, iface := range vmi.Spec.Domain.Devices.Interfaces {
		for _, port := range iface.Ports {
			protocol := corev1.Protocol(strings.ToUpper(port.Protocol))
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			out = append(out, corev1.ContainerPort{Name: port.Name, ContainerPort: port.Port, Protocol: protocol})
		}
	}
	return out
}

// Labels and annotations of Pods that Istio reads. Source: https://istio.io/latest/docs/reference/config/annotations.
const (
	// SidecarLabel requests the injection of Envoy. It is a label, and an annotation in older releases.
	SidecarLabel = "sidecar.istio.io/inject"
	// Interfaces whose inbound traffic is the outbound traffic of a workload. Older releases read the first, newer ones
	// the second.
	kubevirtInterfaces       = "traffic.sidecar.istio.io/kubevirtInterfaces"
	rerouteVirtualInterfaces = "istio.io/reroute-virtual-interfaces"
	// Ports that bypass Envoy.
	excludeInboundPorts  = "traffic.sidecar.istio.io/excludeInboundPorts"
	excludeOutboundPorts = "traffic.sidecar.istio.io/excludeOutboundPorts"
)

// HasSidecar reports whether these labels of a Pod request Istio's sidecar.
func HasSidecar(labels map[string]string) bool {
	return strings.EqualFold(labels[SidecarLabel], "true")
}

// labelForSidecar copies the annotation of a VMI to the Pod's labels, because newer releases of Istio read only the
// label.
func labelForSidecar(labels map[string]string, vmi *v1.VirtualMachineInstance) {
	if value, ok := vmi.Annotations[SidecarLabel]; ok {
		labels[SidecarLabel] = value
	}
}

// annotateForSidecar adds the interface of the guest, if its packets pass the Pod's network stack, and excludes the
// ports of migrations: these connections have TLS of their own, which a mesh with strict mTLS would refuse.
func annotateForSidecar(annotations, labels map[string]string, vmi *v1.VirtualMachineInstance) {
	if !slices.ContainsFunc(vmi.Spec.Domain.Devices.Interfaces, func(i v1.Interface) bool { return i.Masquerade != nil }) {
		return
	}
	bridge := launcherpod.BridgePrefix + launcherpod.PrimaryInterface
	annotations[kubevirtInterfaces], annotations[rerouteVirtualInterfaces] = bridge, bridge
	if !HasSidecar(labels) {
		return
	}
	for _, key := range []string{excludeInboundPorts, excludeOutboundPorts} {
		for port := launcherpod.FirstMigrationPort; port <= launcherpod.LastMigrationPort; port++ {
			annotations[key] = addPort(annotations[key], port)
		}
	}
}

// addPort adds a port to a comma-separated list.
func addPort(list string, port int) string {
	ports := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	if text := strconv.Itoa(port); !slices.Contains(ports, text) {
		ports = append(ports, text)
	}
	return strings.Join(ports, ",")
}

// optionHead is the size of the code and the length of a DHCP option in bytes (RFC 2132, 2).
const optionHead = 2

// dhcpArguments returns the launcher's arguments for the DHCP options of an interface. The launcher cannot read the
// VMI.
func dhcpArguments(path *field.Path, iface *v1.Interface, podInterface string) ([]string, error) {
	wanted := iface.DHCPOptions
	if wanted == nil {
		return nil, nil
	}
	path = path.Child("dhcpOptions")
	options := optionList{path: path, podInterface: podInterface}
	options.text(path.Child("bootFileName"), launcherpod.BootFileNameOption, wanted.BootFileName)
	options.text(path.Child("tftpServerName"), launcherpod.TFTPServerNameOption, wanted.TFTPServerName)
	options.ntpServers(path.Child("ntpServers"), wanted.NTPServers)
	for i, private := range wanted.PrivateOptions {
		at := path.Child("privateOptions").Index(i)
		if private.Option < launcherpod.FirstPrivateOption || private.Option > launcherpod.LastPrivateOption {
			return nil, field.Invalid(at.Child("option"), private.Option, "must be in range 224 to 254")
		}
		options.text(at.Child("value"), uint8(private.Option), private.Value)
	}
	return options.arguments()
}

// optionList collects the DHCP options of one interface, and their size.
type optionList struct {
	path         *field.Path
	podInterface string
	flags        []string
	bytes        int
	errs         field.ErrorList
}

func (l *optionList) text(path *field.Path, code uint8, text string) {
	// A private option may be empty.
	if text == "" && code < launcherpod.FirstPrivateOption {
		return
	}
	l.add(path, code, text, len(text))
}

func (l *optionList) ntpServers(path *field.Path, servers []string) {
	addresses := make([]string, 0, len(servers))
	for i, server := range servers {
		// KubeVirt accepts leading zeros in an address.
		ip := netutils.ParseIPSloppy(server).To4()
		if ip == nil {
			l.errs = append(l.errs, field.Invalid(path.Index(i), server, "must be an IPv4 address"))
			continue
		}
		addresses = append(addresses, ip.String())
	}
	if len(addresses) > 0 {
		l.add(path, launcherpod.NTPServersOption, strings.Join(addresses, " "), 4*len(addresses))
	}
}

func (l *optionList) add(path *field.Path, code uint8, text string, bytes int) {
	if bytes > launcherpod.MaxOptionValue {
		l.errs = append(l.errs, field.TooLong(path, text, launcherpod.MaxOptionValue))
		return
	}
	l.bytes += bytes + optionHead
	option := launcherpod.DHCPOption{Interface: l.podInterface, Code: code, Text: text}
	l.flags = append(l.flags, "--dhcp-option", option.String())
}

func (l *optionList) arguments() ([]string, error) {
	if l.bytes > launcherpod.MaxOptionValues {
		l.errs = append(l.errs, field.Invalid(l.path, l.bytes,
			"all options together must have at most 512 bytes, two for each and its value, to fit a packet: shorten them"))
	}
	return l.flags, specsupport.JoinErrors(l.errs)
}
