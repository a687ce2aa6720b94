// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
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
	serviceAccounts, metrics, dumps := 0, 0, 0
	for i := range c.spec.Volumes {
		volume, at := &c.spec.Volumes[i], p.Index(i)
		if first, taken := seen[volume.Name]; taken {
			c.invalid(at.Child("name"), volume.Name, "%s and %s must not have the same Name.", at, p.Index(first))
		} else {
			seen[volume.Name] = i
		}
		if n := countSet(&volume.VolumeSource); n != 1 {
			c.invalid(at, volume.Name, "%s must have exactly one source type set", at)
		}
		c.volumeSource(at, volume)
		switch {
		case volume.ServiceAccount != nil:
			serviceAccounts++
			c.sameServiceAccount(volume.ServiceAccount.ServiceAccountName)
		case volume.DownwardMetrics != nil:
			metrics++
		case volume.MemoryDump != nil:
			dumps++
		}
	}
	if serviceAccounts > 1 {
		c.invalid(p, serviceAccounts, "%s must have max one serviceAccount volume set", p)
	}
	if metrics > 1 {
		c.invalid(p, metrics, "%s must have max one downwardMetric volume set", p)
	}
	if dumps > 1 {
		c.invalid(p, dumps, "%s must have max one memory dump volume set", p)
	}
}

// volumeSource applies KubeVirt's rules for a volume. Package specsupport contains the values that KubeVirt accepts
// although no guest can have them.
func (c *check) volumeSource(at *field.Path, volume *v1.Volume) {
	need := func(name string, p *field.Path) {
		if name == "" {
			c.required(p, "%s is a required field", p)
		}
	}
	switch {
	case volume.ContainerDisk != nil:
		c.imagePath(at.Child("containerDisk", "path"), volume.ContainerDisk.Path)
	case volume.HostDisk != nil:
		c.hostDisk(at, volume.HostDisk)
	case volume.DataVolume != nil && volume.DataVolume.Name == "":
		c.required(at.Child("dataVolume", "name"), "DataVolume 'name' must be set")
	case volume.ConfigMap != nil:
		need(volume.ConfigMap.Name, at.Child("configMap", "name"))
	case volume.Secret != nil:
		need(volume.Secret.SecretName, at.Child("secret", "secretName"))
	case volume.ServiceAccount != nil:
		need(volume.ServiceAccount.ServiceAccountName, at.Child("serviceAccount", "serviceAccountName"))
	case volume.DownwardMetrics != nil && !c.config.IsEnabled(gateDownwardMetrics):
		c.forbidden(at.Child("downwardMetrics"),
			"downwardMetrics disks are not allowed: DownwardMetrics feature gate is not enabled.")
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

// checkVolumesUsed applies only to a VMI, because a volume of a template without a disk gets one when the VM starts.
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

// sameServiceAccount rejects a serviceAccount volume whose account differs from that of the Pod, because the Pod cannot
// get its token.
func (c *check) sameServiceAccount(volumeAccount string) {
	if named := c.spec.ServiceAccountName; named != "" && volumeAccount != "" && named != volumeAccount {
		c.invalid(c.at("serviceAccountName"), named,
			"serviceAccountName %s differs from that of the serviceAccount volume, %s. "+
				"Name the same one, or leave serviceAccountName out.", named, volumeAccount)
	}
}
