// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package content

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// defaultArchitecture is the architecture of an image of a VM that names none. KubeVirt's.
const defaultArchitecture = "amd64"

// ImageConfig returns the VM as the configuration of an OCI image, and its architecture. As in KubeVirt, the VM has no namespace, and the
// names of claims instead of DataVolumes: whoever imports the image creates the claims from its layers.
func (c *Content) ImageConfig() (config []byte, architecture string, err error) {
	vm := runtime.DeepCopyJSON(c.Manifests.VirtualMachine)
	unstructured.RemoveNestedField(vm, "metadata", "namespace")
	unstructured.RemoveNestedField(vm, "spec", "dataVolumeTemplates")
	spec, _, _ := unstructured.NestedMap(vm, "spec", "template", "spec")
	volumes, _ := spec["volumes"].([]any)
	for i := range volumes {
		volumes[i] = onClaim(volumes[i])
	}
	if len(volumes) > 0 {
		if err := unstructured.SetNestedSlice(vm, volumes, "spec", "template", "spec", "volumes"); err != nil {
			return nil, "", fmt.Errorf("write the volumes of the VM: %w", err)
		}
	}
	architecture, _ = spec["architecture"].(string)
	if architecture == "" {
		architecture = defaultArchitecture
	}
	if config, err = json.Marshal(vm); err != nil {
		return nil, "", fmt.Errorf("write the VM: %w", err)
	}
	return config, architecture, nil
}

// onClaim returns a volume with the claim of its DataVolume, which has the same name.
func onClaim(volume any) any {
	fields, _ := volume.(map[string]any)
	dataVolume, found := fields["dataVolume"].(map[string]any)
	if !found {
		return volume
	}
	return map[string]any{"name": fields["name"], "persistentVolumeClaim": map[string]any{"claimName": dataVolume["name"]}}
}
