// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package content

import "k8s.io/apimachinery/pkg/runtime"

// CAKey is the key of the certificates in the ConfigMap of the manifests. KubeVirt's, which CDI reads.
const CAKey = "ca.pem"

// CAName returns the name of the ConfigMap with the certificates with which CDI verifies the server.
func CAName(export string) string { return "export-ca-cm-" + export }

// HeaderSecretName returns the name of the Secret with the header that CDI sends.
func HeaderSecretName(export string) string { return "header-secret-" + export }

// SecretManifest returns the Secret with the token as a header, in CDI's format.
func (c *Content) SecretManifest(token string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": HeaderSecretName(c.Export)},
		"stringData": map[string]any{TokenKey: TokenHeader + ":" + token},
	}
}

// AllManifests returns the manifests from which the VM can be created with downloads from this address, except for the Secret: the
// ConfigMap with the certificates, the VM and its DataVolumes.
func (c *Content) AllManifests(side Side) []map[string]any {
	out := make([]map[string]any, 0, len(c.Manifests.DataVolumes)+2)
	if side.CA != "" {
		out = append(out, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": CAName(c.Export)}, "data": map[string]any{CAKey: side.CA},
		})
	}
	out = append(out, c.virtualMachine(side))
	for _, dv := range c.Manifests.DataVolumes {
		volume, found := c.Volume(dv.Volume)
		if !found {
			continue
		}
		storage := map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": dv.Size}}}
		if dv.VolumeMode != "" {
			storage["volumeMode"] = dv.VolumeMode
		}
		spec := map[string]any{"storage": storage}
		c.fill(spec, volume, side)
		out = append(out, map[string]any{
			"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": map[string]any{"name": dv.Name}, "spec": spec,
		})
	}
	return out
}

// virtualMachine returns the VM, whose DataVolume templates download the exported volumes.
func (c *Content) virtualMachine(side Side) map[string]any {
	vm := runtime.DeepCopyJSON(c.Manifests.VirtualMachine)
	spec, _ := vm["spec"].(map[string]any)
	templates, _ := spec["dataVolumeTemplates"].([]any)
	for i := range templates {
		template, _ := templates[i].(map[string]any)
		metadata, _ := template["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		volume, found := c.Volume(c.Manifests.Templates[name])
		inner, isMap := template["spec"].(map[string]any)
		if found && isMap {
			delete(inner, "sourceRef")
			c.fill(inner, volume, side)
		}
	}
	return vm
}

// fill sets the source of a DataVolume.
func (c *Content) fill(spec map[string]any, volume Volume, side Side) {
	file := volume.GzipPath()
	if !volume.Disk {
		file = volume.ArchivePath()
		spec["contentType"] = "archive"
	}
	http := map[string]any{"url": "https://" + side.Address + file, "secretExtraHeaders": []any{HeaderSecretName(c.Export)}}
	if side.CA != "" {
		http["certConfigMap"] = CAName(c.Export)
	}
	spec["source"] = map[string]any{"http": http}
}
