// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
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

// checkUtilityVolumes rejects utility volumes in a new VMI. They can only be hotplugged.
func checkUtilityVolumes(c *check) {
	if c.spec.UtilityVolumes != nil {
		c.forbidden(c.at("utilityVolumes"),
			"cannot create VMI with utility volumes in spec, utility volumes can only be added via hotplug")
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

// foreignDataVolumes rejects templates of DataVolumes in another namespace. As in KubeVirt, it accepts templates that
// do not change.
func foreignDataVolumes(path *field.Path, vm, before *v1.VirtualMachine) field.ErrorList {
	if before != nil && equality.Semantic.DeepEqual(before.Spec.DataVolumeTemplates, vm.Spec.DataVolumeTemplates) {
		return nil
	}
	var errs field.ErrorList
	for i := range vm.Spec.DataVolumeTemplates {
		if namespace := vm.Spec.DataVolumeTemplates[i].Namespace; namespace != "" && namespace != vm.Namespace {
			errs = append(errs, field.Invalid(path.Child("dataVolumeTemplates").Index(i), namespace,
				fmt.Sprintf("Embedded DataVolume namespace %s differs from VM namespace %s", namespace, vm.Namespace)))
		}
	}
	return errs
}

// validateDataVolumeTemplates rejects templates from which no DataVolume can be created, and unused templates, with one
// error each. The messages and the paths are KubeVirt's. Clients read the paths, although they are not those of the
// fields.
func validateDataVolumeTemplates(path *field.Path, spec *v1.VirtualMachineSpec) field.ErrorList {
	used := map[string]bool{}
	for i := range spec.Template.Spec.Volumes {
		volume := &spec.Template.Spec.Volumes[i]
		if volume.DataVolume != nil {
			used[volume.DataVolume.Name] = true
		}
		if volume.PersistentVolumeClaim != nil {
			used[volume.PersistentVolumeClaim.ClaimName] = true
		}
	}
	var errs field.ErrorList
	for i := range spec.DataVolumeTemplates {
		template, at := &spec.DataVolumeTemplates[i], path.Child("dataVolumeTemplate").Index(i)
		fault := validateDataVolume(at, template)
		if fault == nil && !used[template.Name] {
			fault = field.Required(at,
				"DataVolumeTemplate entry "+at.String()+" must be referenced in the VMI template's 'volumes' list")
		}
		if fault != nil {
			errs = append(errs, fault)
		}
	}
	return errs
}

func validateDataVolume(at *field.Path, template *v1.DataVolumeTemplateSpec) *field.Error {
	spec := &template.Spec
	switch {
	case template.Name == "":
		name := at.Child("name")
		return field.Required(name, "'name' field must not be empty for DataVolumeTemplate entry "+name.String()+".")
	case spec.PVC == nil && spec.Storage == nil:
		return field.Invalid(at.Child("PVC", "Storage"), "", "Missing Data volume PVC or Storage")
	case spec.PVC != nil && spec.Storage != nil:
		return field.Invalid(at.Child("PVC", "Storage"), "",
			"Duplicate storage definition, both target storage and target pvc defined")
	}
	populated, sources := externallyPopulated(spec), countSet(spec.Source)
	switch {
	case populated && (spec.Source != nil || spec.SourceRef != nil):
		return field.Invalid(at.Child("source"), "", "External population is incompatible with Source and SourceRef")
	case !populated && spec.Source == nil && spec.SourceRef == nil:
		return field.Invalid(at.Child("source", "sourceRef"), "",
			"Data volume should have either Source, SourceRef, or be externally populated")
	case spec.Source != nil && sources == 0:
		return field.Invalid(at.Child("source"), "", "Missing dataVolume valid source")
	case sources > 1:
		return field.Invalid(at.Child("source"), "", "Multiple dataVolume sources")
	}
	return nil
}

// externallyPopulated reports whether the claim has a data source of its own, so that CDI does not fill it.
func externallyPopulated(spec *cdiv1beta1.DataVolumeSpec) bool {
	var source *corev1.TypedLocalObjectReference
	var ref *corev1.TypedObjectReference
	if spec.PVC != nil {
		source, ref = spec.PVC.DataSource, spec.PVC.DataSourceRef
	} else {
		source, ref = spec.Storage.DataSource, spec.Storage.DataSourceRef
	}
	return source != nil || ref != nil
}

// countSet returns how many fields of the struct that source points to are not nil, or 0 for a nil pointer. All fields
// are pointers. So it also counts kinds of sources that are added to the API later.
func countSet[T any](source *T) int {
	if source == nil {
		return 0
	}
	n := 0
	for _, member := range reflect.ValueOf(source).Elem().Fields() {
		if !member.IsNil() {
			n++
		}
	}
	return n
}
