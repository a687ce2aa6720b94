// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// networkStatusAnnotation is the annotation of a Pod in which Multus lists the attached networks. Source: the Network
// Plumbing Working Group's standard.
const networkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// maxNetworkStatus is how much of the annotation is read: others than Multus may write it.
const maxNetworkStatus = 64 << 10

// NetworkChanges are the networks by which the Pod of a running guest differs from its VMI.
type NetworkChanges struct {
	// Plug are the networks of the VMI that the Pod is not attached to, by their name in the spec.
	Plug []string
	// Replace are the networks of the VMI instead of which the Pod was attached to another one, by their name in the spec.
	// Nothing changes that in a running Pod.
	Replace []string
	// Unplug are the Pod's interfaces on networks that the guest no longer uses.
	Unplug []string
	// Releasing are the interfaces that are absent in the spec and that the guest still has. The Pod keeps them until
	// then.
	Releasing []string
}

// PendingNetworks compares the networks of a running guest's Pod with those of the VMI. Networks that the author of the
// VMI has added to the Pod, and that for migrations, are left.
func PendingNetworks(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) NetworkChanges {
	attached := attachedInterfaces(pod)
	var changes NetworkChanges
	kept := map[string]bool{}
	for _, network := range Connected(vmi) {
		name := PodInterface(&network)
		kept[name] = true
		if !plugs(vmi, &network) {
			continue
		}
		if !attached[name] && !vmistatus.HasInterface(&vmi.Status, network.Name) {
			changes.Plug = append(changes.Plug, network.Name)
		}
		on, requested := networkOn(pod.Annotations[networksAnnotation], name)
		if attached[name] && requested && on != AttachmentDefinition(vmi.Namespace, network.Multus) {
			changes.Replace = append(changes.Replace, network.Name)
		}
	}
	for i := range vmi.Spec.Networks {
		name := PodInterface(&vmi.Spec.Networks[i])
		if !kept[name] && vmistatus.HasInterface(&vmi.Status, vmi.Spec.Networks[i].Name) {
			kept[name] = true
			changes.Releasing = append(changes.Releasing, vmi.Spec.Networks[i].Name)
		}
	}
	for name := range attached {
		if launcherpod.IsSecondaryInterface(name) && !kept[name] {
			changes.Unplug = append(changes.Unplug, name)
		}
	}
	slices.Sort(changes.Unplug)
	return changes
}

// HasNetworks reports whether a Pod was made with the networks of all interfaces of the VMI that can be plugged.
func HasNetworks(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) bool {
	for _, network := range Connected(vmi) {
		on, requested := networkOn(pod.Annotations[networksAnnotation], PodInterface(&network))
		if plugs(vmi, &network) && (!requested || on != AttachmentDefinition(vmi.Namespace, network.Multus)) {
			return false
		}
	}
	return true
}

// plugs reports whether the interface of a network can be plugged into a running guest.
func plugs(vmi *v1.VirtualMachineInstance, network *v1.Network) bool {
	return network.IsPluggable() && slices.ContainsFunc(vmi.Spec.Domain.Devices.Interfaces, func(i v1.Interface) bool {
		return i.Name == network.Name && i.Bridge != nil
	})
}

// attachedInterfaces returns the Pod's interfaces on networks of Multus, as that reports them. It ignores an annotation
// that it cannot read.
func attachedInterfaces(pod *corev1.Pod) map[string]bool {
	text := pod.Annotations[networkStatusAnnotation]
	var list []selection
	if len(text) > maxNetworkStatus || json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	attached := map[string]bool{}
	for i := range list {
		attached[list[i].Interface] = true
	}
	return attached
}

// ChangeNetworks writes the differences to the annotation from which Multus reads the networks of a Pod. Multus reads
// it when a Pod starts; a controller for dynamic networks, if the cluster has one, attaches and detaches networks of a
// running Pod.
func ChangeNetworks(annotations map[string]string, vmi *v1.VirtualMachineInstance, changes NetworkChanges) error {
	macs := map[string]string{}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		macs[vmi.Spec.Domain.Devices.Interfaces[i].Name] = vmi.Spec.Domain.Devices.Interfaces[i].MacAddress
	}
	for i := range vmi.Spec.Networks {
		network := &vmi.Spec.Networks[i]
		if !slices.Contains(changes.Plug, network.Name) {
			continue
		}
		definition := AttachmentDefinition(vmi.Namespace, network.Multus)
		err := addNetwork(annotations, selection{
			Name: definition.Name, Namespace: definition.Namespace, MAC: macs[network.Name], Interface: PodInterface(network),
		})
		if err != nil {
			return err
		}
	}
	return removeNetworks(annotations, changes.Unplug)
}

// removeNetworks removes the networks of interfaces from the annotation, in either of its two forms. It does not change
// a malformed list.
func removeNetworks(annotations map[string]string, interfaces []string) error {
	had := annotations[networksAnnotation]
	if had == "" || len(interfaces) == 0 {
		return nil
	}
	if !isJSON(had) {
		kept := slices.DeleteFunc(strings.Split(had, ","), func(one string) bool {
			_, name, found := strings.Cut(strings.TrimSpace(one), "@")
			return found && slices.Contains(interfaces, name)
		})
		setNetworks(annotations, strings.Join(kept, ","))
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal([]byte(had), &list) != nil {
		return nil //nolint:nilerr // Multus has refused it, so the Pod has no such network.
	}
	kept := slices.DeleteFunc(list, func(raw json.RawMessage) bool {
		one := selection{}
		return json.Unmarshal(raw, &one) == nil && slices.Contains(interfaces, one.Interface)
	})
	if len(kept) == 0 {
		setNetworks(annotations, "")
		return nil
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("write the annotation %s: %w", networksAnnotation, err)
	}
	setNetworks(annotations, string(text))
	return nil
}

func setNetworks(annotations map[string]string, networks string) {
	if networks == "" {
		delete(annotations, networksAnnotation)
		return
	}
	annotations[networksAnnotation] = networks
}
