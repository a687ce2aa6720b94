// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Annotations from which Multus reads the networks of a Pod. Source: the Network Plumbing Working Group's standard, and
// Multus for the default network.
const (
	networksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	defaultNetworkAnnotation = "v1.multus-cni.io/default-network"
)

// selection is an element of networksAnnotation.
type selection struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	MAC       string `json:"mac,omitempty"`
	Interface string `json:"interface"`
}

// AttachmentDefinition returns the name of the NetworkAttachmentDefinition of a network of a VMI in a namespace.
func AttachmentDefinition(namespace string, network *v1.MultusNetwork) types.NamespacedName {
	if other, name, found := strings.Cut(network.NetworkName, "/"); found {
		return types.NamespacedName{Namespace: other, Name: name}
	}
	return types.NamespacedName{Namespace: namespace, Name: network.NetworkName}
}

// Connected returns the networks of a VMI whose interface is not absent, in the order of spec.networks.
func Connected(vmi *v1.VirtualMachineInstance) []v1.Network {
	absent := map[string]bool{}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		absent[iface.Name] = iface.State == v1.InterfaceStateAbsent
	}
	var out []v1.Network
	for _, network := range vmi.Spec.Networks {
		if !absent[network.Name] {
			out = append(out, network)
		}
	}
	return out
}

// PodInterface returns the name of the Pod's interface on a network.
func PodInterface(network *v1.Network) string {
	if network.IsPrimary() {
		return launcherpod.PrimaryInterface
	}
	return launcherpod.SecondaryInterface(network.Name)
}

// annotateNetworks requests the networks beside the Pod network from Multus: those of the guest, and the network for
// migrations.
func annotateNetworks(
	annotations map[string]string, vmi *v1.VirtualMachineInstance, migrations types.NamespacedName,
) error {
	macs := map[string]string{}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		macs[iface.Name] = iface.MacAddress
	}
	var secondary []selection
	for _, network := range Connected(vmi) {
		switch multus := network.Multus; {
		case multus == nil:
		case multus.Default:
			annotations[defaultNetworkAnnotation] = multus.NetworkName
		default:
			definition := AttachmentDefinition(vmi.Namespace, multus)
			secondary = append(secondary, selection{
				Name: definition.Name, Namespace: definition.Namespace, MAC: macs[network.Name], Interface: PodInterface(&network),
			})
		}
	}
	if len(secondary) > 0 {
		text, err := json.Marshal(secondary)
		if err != nil {
			return fmt.Errorf("write the annotation %s: %w", networksAnnotation, err)
		}
		annotations[networksAnnotation] = string(text)
	}
	if migrations.Name == "" {
		return nil
	}
	return addNetwork(annotations,
		selection{Name: migrations.Name, Namespace: migrations.Namespace, Interface: v1.MigrationInterfaceName})
}

// addNetwork adds a network to the annotation, to which the author of the VMI may have added networks in either of its
// two forms. It does not change a malformed list, which Multus refuses.
func addNetwork(annotations map[string]string, network selection) error {
	had := strings.TrimSpace(annotations[networksAnnotation])
	if onInterface(had, network.Interface) {
		return nil
	}
	if had != "" && !isJSON(had) {
		annotations[networksAnnotation] = fmt.Sprintf("%s,%s/%s@%s", had, network.Namespace, network.Name, network.Interface)
		return nil
	}
	var list []json.RawMessage
	if valid := had == "" || json.Unmarshal([]byte(had), &list) == nil; !valid {
		return nil
	}
	added, err := json.Marshal(network)
	if err != nil {
		return fmt.Errorf("write the annotation %s: %w", networksAnnotation, err)
	}
	text, err := json.Marshal(append(list, added))
	if err != nil {
		return fmt.Errorf("write the annotation %s: %w", networksAnnotation, err)
	}
	annotations[networksAnnotation] = string(text)
	return nil
}

// isJSON reports whether the annotation is JSON, with the rule of Multus (pkg/k8sclient, parsePodNetworkAnnotation).
func isJSON(networks string) bool { return strings.ContainsAny(networks, "[{\"") }

// networkOn returns the network that a list has for an interface, if it names the network with its namespace. This
// package always does.
func networkOn(networks, name string) (definition types.NamespacedName, found bool) {
	if !isJSON(networks) {
		for one := range strings.SplitSeq(networks, ",") {
			network, iface, _ := strings.Cut(strings.TrimSpace(one), "@")
			if namespace, of, qualified := strings.Cut(network, "/"); iface == name && qualified {
				return types.NamespacedName{Namespace: namespace, Name: of}, true
			}
		}
		return types.NamespacedName{}, false
	}
	var selections []selection
	if json.Unmarshal([]byte(networks), &selections) != nil {
		return types.NamespacedName{}, false
	}
	for i := range selections {
		if s := &selections[i]; s.Interface == name && s.Namespace != "" {
			return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, true
		}
	}
	return types.NamespacedName{}, false
}

// onInterface reports whether a list of networks contains one for an interface.
func onInterface(networks, name string) bool {
	if !isJSON(networks) {
		return slices.ContainsFunc(strings.Split(networks, ","), func(one string) bool {
			return strings.HasSuffix(strings.TrimSpace(one), "@"+name)
		})
	}
	var selections []selection
	if json.Unmarshal([]byte(networks), &selections) != nil {
		return false
	}
	return slices.ContainsFunc(selections, func(s selection) bool { return s.Interface == name })
}

// OnMigrationNetwork reports whether a launcher Pod has an interface on the network for migrations.
func OnMigrationNetwork(pod *corev1.Pod) bool {
	return onInterface(pod.Annotations[networksAnnotation], v1.MigrationInterfaceName)
}

// requestNetworkResources requests one device for each network whose definition has a resource name.
func requestNetworkResources(out *corev1.ResourceRequirements, vmi *v1.VirtualMachineInstance, cfg Config) {
	for _, network := range Connected(vmi) {
		name := cfg.NetworkResources[network.Name]
		if name == "" {
			continue
		}
		for _, list := range []corev1.ResourceList{out.Requests, out.Limits} {
			sum := list[name]
			sum.Add(resource.MustParse("1"))
			list[name] = sum
		}
	}
}
