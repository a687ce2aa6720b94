// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func checkVolumes(c *check) {
	p := c.at("volumes")
	if c.tooMany(p, len(c.spec.Volumes)) {
		return
	}
	seen := map[string]int{}
	serviceAccounts := 0
	for i := range c.spec.Volumes {
		volume, at := &c.spec.Volumes[i], p.Index(i)
		if first, taken := seen[volume.Name]; taken {
			c.invalid(at.Child("name"), volume.Name, "%s and %s must not have the same Name.", at, p.Index(first))
		} else {
			seen[volume.Name] = i
		}
		if n := sources(&volume.VolumeSource); n != 1 {
			c.invalid(at, volume.Name, "%s must have exactly one source type set", at)
		}
		c.volumeSource(at, volume)
		if volume.ServiceAccount != nil {
			serviceAccounts++
		}
	}
	if serviceAccounts > 1 {
		c.invalid(p, serviceAccounts, "%s must have max one serviceAccount volume set", p)
	}
}

// sources counts the members of a volume's source that are set. Each member is a pointer, so that a new kind of volume
// is counted without a change here.
func sources(source *v1.VolumeSource) int {
	n := 0
	for _, member := range reflect.ValueOf(source).Elem().Fields() {
		if !member.IsNil() {
			n++
		}
	}
	return n
}

func (c *check) volumeSource(at *field.Path, volume *v1.Volume) {
	c.namedSource(at, volume)
	switch {
	case volume.ContainerDisk != nil:
		disk := at.Child("containerDisk")
		if volume.ContainerDisk.Image == "" {
			c.required(disk.Child("image"), "%s must name an image", disk.Child("image"))
		}
		c.imagePath(disk.Child("path"), volume.ContainerDisk.Path)
	case volume.HostDisk != nil:
		c.hostDisk(at, volume.HostDisk)
	case volume.EmptyDisk != nil:
		if volume.EmptyDisk.Capacity.Sign() <= 0 {
			capacity := at.Child("emptyDisk", "capacity")
			c.invalid(capacity, volume.EmptyDisk.Capacity.String(), "%s must be a size greater than 0, such as 2Gi", capacity)
		}
	}
}

// namedSource reports a volume that refers to an object without its name.
func (c *check) namedSource(at *field.Path, volume *v1.Volume) {
	need := func(name string, p *field.Path) {
		if name == "" {
			c.required(p, "%s is a required field", p)
		}
	}
	switch {
	case volume.PersistentVolumeClaim != nil:
		need(volume.PersistentVolumeClaim.ClaimName, at.Child("persistentVolumeClaim", "claimName"))
	case volume.Ephemeral != nil && volume.Ephemeral.PersistentVolumeClaim != nil:
		need(volume.Ephemeral.PersistentVolumeClaim.ClaimName, at.Child("ephemeral", "persistentVolumeClaim", "claimName"))
	case volume.DataVolume != nil && volume.DataVolume.Name == "":
		c.required(at.Child("dataVolume", "name"), "DataVolume 'name' must be set")
	case volume.ConfigMap != nil:
		need(volume.ConfigMap.Name, at.Child("configMap", "name"))
	case volume.Secret != nil:
		need(volume.Secret.SecretName, at.Child("secret", "secretName"))
	case volume.ServiceAccount != nil:
		need(volume.ServiceAccount.ServiceAccountName, at.Child("serviceAccount", "serviceAccountName"))
	case volume.Sysprep != nil && (volume.Sysprep.Secret == nil) == (volume.Sysprep.ConfigMap == nil):
		c.invalid(at.Child("sysprep"), volume.Name, "%s must have exactly one of secret and configMap set", at.Child("sysprep"))
	}
}

func (c *check) hostDisk(at *field.Path, disk *v1.HostDisk) {
	if !c.config.IsEnabled(clusterconfig.GateHostDisk) {
		c.forbidden(at.Child("hostDisk"), "HostDisk feature gate is not enabled. Add HostDisk to "+
			"spec.configuration.developerConfiguration.featureGates of the KubeVirt object.")
	}
	p := at.Child("hostDisk")
	if disk.Path == "" {
		c.required(p.Child("path"), "%s is required for hostDisk volume", p.Child("path"))
	}
	if disk.Type != v1.HostDiskExists && disk.Type != v1.HostDiskExistsOrCreate {
		c.invalid(p.Child("type"), disk.Type, "%s has invalid value '%s', allowed are '%s' or '%s'",
			p.Child("type"), disk.Type, v1.HostDiskExists, v1.HostDiskExistsOrCreate)
	}
	if disk.Type == v1.HostDiskExists && !disk.Capacity.IsZero() {
		c.invalid(p.Child("capacity"), disk.Capacity.String(), "%s is allowed to pass only with %s equal to '%s'",
			p.Child("capacity"), p.Child("type"), v1.HostDiskExistsOrCreate)
	}
}

// checkVolumesUsed holds for a VMI only: in a VM's template a volume without a disk still gets one at the start.
func checkVolumesUsed(c *check) {
	used := map[string]bool{}
	for i := range c.spec.Domain.Devices.Disks {
		used[c.spec.Domain.Devices.Disks[i].Name] = true
	}
	for i := range c.spec.Domain.Devices.Filesystems {
		used[c.spec.Domain.Devices.Filesystems[i].Name] = true
	}
	for i := range c.spec.Volumes {
		volume, p := &c.spec.Volumes[i], c.at("volumes").Index(i).Child("name")
		if volume.MemoryDump == nil && !used[volume.Name] {
			c.invalid(p, volume.Name, "%s '%s' not found. Add a disk of that name to domain.devices.disks.", p, volume.Name)
		}
	}
}
