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
	"github.com/vireo-project/vireo/internal/launcher/podiface"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Annotations by which Multus learns what to attach to a Pod. Source: the Network Plumbing Working Group's standard, and
// Multus for the default network.
const (
	networksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	defaultNetworkAnnotation = "v1.multus-cni.io/default-network"
)

// selection is an element of the list in networksAnnotation.
type selection struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	MAC       string `json:"mac,omitempty"`
	Interface string `json:"interface"`
}

// AttachmentDefinition is the NetworkAttachmentDefinition that a network of a VMI in a namespace names.
func AttachmentDefinition(namespace string, network *v1.MultusNetwork) types.NamespacedName {
	if other, name, found := strings.Cut(network.NetworkName, "/"); found {
		return types.NamespacedName{Namespace: other, Name: name}
	}
	return types.NamespacedName{Namespace: namespace, Name: network.NetworkName}
}

// Connected are the networks of a VMI to which an interface connects it, in the order of spec.networks.
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

// PodInterface is the Pod's interface on a network.
func PodInterface(network *v1.Network) string {
	if network.IsPrimary() {
		return launcherpod.PrimaryInterface
	}
	return podiface.Secondary(network.Name)
}

// annotateNetworks asks Multus for the networks beyond the Pod's own: the guest's, and that over which guests migrate, from Pod to Pod.
func annotateNetworks(annotations map[string]string, vmi *v1.VirtualMachineInstance, migrations types.NamespacedName) error {
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
	return addNetwork(annotations, selection{Name: migrations.Name, Namespace: migrations.Namespace, Interface: v1.MigrationInterfaceName})
}

// addNetwork adds a network to those that Multus attaches already, as the VMI's author may have asked for on their own, in either of the
// annotation's two forms. A list that nobody can read stays as it is, for Multus to refuse.
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
	if readable := had == "" || json.Unmarshal([]byte(had), &list) == nil; !readable {
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

// isJSON tells the annotation's two forms apart as Multus does (pkg/k8sclient, parsePodNetworkAnnotation).
func isJSON(networks string) bool { return strings.ContainsAny(networks, "[{\"") }

// onInterface says that a list of networks has one on an interface.
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

// OnMigrationNetwork says that a launcher Pod was made with an interface on the network over which guests migrate.
func OnMigrationNetwork(pod *corev1.Pod) bool {
	return onInterface(pod.Annotations[networksAnnotation], v1.MigrationInterfaceName)
}

// requestNetworkResources asks for one device for each network whose definition names a resource.
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
