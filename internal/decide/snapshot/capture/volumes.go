// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Storage contains what determines, besides a volume itself, whether a snapshot can include it.
type Storage struct {
	// Claims are the claims of the VM's namespace by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// State is the VM's state claim, or nil if it has none.
	State *corev1.PersistentVolumeClaim
	// Drivers are the drivers of the storage classes, by the name of the class.
	Drivers map[string]string
	// Preferred are the VolumeSnapshotClasses that the importer's storage profiles name, by the name of the storage class.
	Preferred map[string]string
	// Classes are the VolumeSnapshotClasses.
	Classes []csi.VolumeSnapshotClass
}

// Volume is a volume of a VM, or its persistent state, and whether a snapshot can include it.
type Volume struct {
	// Name is its name in the VM.
	Name string
	// ClaimName is the name of its claim; empty if snapshots do not include volumes of its type.
	ClaimName string
	// Claim is its claim, or nil if that does not exist.
	Claim *corev1.PersistentVolumeClaim
	// Class is the VolumeSnapshotClass; empty if a snapshot cannot include the volume.
	Class string
	// Reason explains why a snapshot cannot include it.
	Reason string
	// Undecided reports whether it is not known which VolumeSnapshotClass is to be used. Such a volume is not omitted: the
	// snapshot waits until that is known.
	Undecided bool
}

// Volumes returns the volumes of a VM, in its order, and the persistent state at the end. The VM's instance type and
// preference must have been applied: they may add a TPM.
func Volumes(vm *v1.VirtualMachine, storage Storage) []Volume {
	if vm.Spec.Template == nil {
		return nil
	}
	spec := &vm.Spec.Template.Spec
	out := make([]Volume, 0, len(spec.Volumes)+1)
	for i := range spec.Volumes {
		volume := Volume{Name: spec.Volumes[i].Name, ClaimName: ClaimName(&spec.Volumes[i])}
		volume.Claim = storage.Claims[volume.ClaimName]
		out = append(out, volume)
	}
	if spec.HasPersistentState() {
		state := Volume{Name: StateVolume(vm.Name), ClaimName: v1.PersistentStateLabel + "-" + vm.Name, Claim: storage.State}
		if storage.State != nil {
			state.ClaimName = storage.State.Name
		}
		out = append(out, state)
	}
	for i := range out {
		out[i].choose(storage)
	}
	return out
}

// ClaimName returns the name of the claim that a snapshot includes, or "" for a volume of another type.
func ClaimName(volume *v1.Volume) string {
	if volume.MemoryDump != nil {
		return volume.MemoryDump.ClaimName
	}
	return volume.WrittenClaim()
}

// choose sets the class of the volume, or the reason why it has none.
func (v *Volume) choose(storage Storage) {
	switch {
	case v.ClaimName == "":
		v.Reason = fmt.Sprintf("Snapshot is not supported for this volumeSource type [%s]", v.Name)
		return
	case v.Claim == nil:
		v.Reason = "PVC not found"
		return
	}
	storageClass := ptr.Deref(v.Claim.Spec.StorageClassName, "")
	class, err := storage.SnapshotClass(storageClass)
	switch {
	case err != nil:
		v.Reason, v.Undecided = err.Error(), true
	case class == "":
		v.Reason = fmt.Sprintf("No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [%s] [%s]",
			storageClass, v.Name)
	default:
		v.Class = class
	}
}

// SnapshotClass returns the VolumeSnapshotClass for a storage class, or "". If the storage profile names a class that
// does not exist, the result is empty, because the administrator wants no other.
func (s Storage) SnapshotClass(storageClass string) (string, error) {
	driver := s.Drivers[storageClass]
	if driver == "" {
		return "", nil
	}
	preferred := s.Preferred[storageClass]
	var matching, defaults []string
	for i := range s.Classes {
		class := &s.Classes[i]
		if class.Name == preferred {
			return preferred, nil
		}
		if class.Driver != driver {
			continue
		}
		matching = append(matching, class.Name)
		// KubeVirt accepts any value, also "false".
		if class.Annotations[csi.IsDefaultClassAnnotation] == "true" {
			defaults = append(defaults, class.Name)
		}
	}
	switch {
	case preferred != "", len(matching) == 0:
		return "", nil
	case len(matching) == 1:
		return matching[0], nil
	case len(defaults) == 1:
		return defaults[0], nil
	default:
		return "", fmt.Errorf("%d matching VolumeSnapshotClasses for %s", len(matching), storageClass)
	}
}

// Statuses returns what the VM's status reports before a snapshot is taken.
func Statuses(volumes []Volume) []v1.VolumeSnapshotStatus {
	out := make([]v1.VolumeSnapshotStatus, 0, len(volumes))
	for i := range volumes {
		v := &volumes[i]
		out = append(out, v1.VolumeSnapshotStatus{Name: v.Name, Enabled: v.Class != "", Reason: v.Reason})
	}
	return out
}

// lists returns the volumes that are in a content and those that are not. partial reports whether a volume is missing
// although snapshots include volumes of its type.
func lists(content *v1beta1.VirtualMachineSnapshotContent) (out *v1beta1.SnapshotVolumesLists, partial bool) {
	if content == nil {
		return nil, false
	}
	vm := content.Spec.Source.VirtualMachine
	if vm == nil || vm.Spec.Template == nil {
		return nil, false
	}
	included := map[string]bool{}
	for i := range content.Spec.VolumeBackups {
		included[content.Spec.VolumeBackups[i].VolumeName] = true
	}
	out = &v1beta1.SnapshotVolumesLists{}
	add := func(name string, possible bool) {
		if included[name] {
			out.IncludedVolumes = append(out.IncludedVolumes, name)
			return
		}
		out.ExcludedVolumes = append(out.ExcludedVolumes, name)
		partial = partial || possible
	}
	spec := &vm.Spec.Template.Spec
	for i := range spec.Volumes {
		add(spec.Volumes[i].Name, ClaimName(&spec.Volumes[i]) != "")
	}
	// A TPM that a preference adds is not in this spec.
	if state := StateVolume(vm.Name); spec.HasPersistentState() || included[state] {
		add(state, true)
	}
	return out, partial
}

// maxName is the maximum length of the name of a volume, and of the value of a label. Source: k8s.io/apimachinery
// pkg/util/validation, DNS1035LabelMaxLength and LabelValueMaxLength.
const maxName = 63

// StateVolume returns the name of the persistent state of a VM in a snapshot.
func StateVolume(vm string) string { return Join(v1.PersistentStateLabel, vm) }

// Join joins two parts of a name by a dash. If the name is too long, a hash replaces its end.
func Join(first, second string) string { return shorten(first + "-" + second) }

func shorten(name string) string {
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:])[:8]
	return name[:maxName-len(suffix)] + suffix
}

// SetSourceName sets a label that names the VM whose volume it was. If the VM's name is too long for a label, a hash
// replaces its end, and an annotation with the same key has the whole name.
func SetSourceName(meta *metav1.ObjectMeta, label, vm string) {
	metav1.SetMetaDataLabel(meta, label, shorten(vm))
	delete(meta.Annotations, label)
	if len(vm) > maxName {
		metav1.SetMetaDataAnnotation(meta, label, vm)
	}
}

// ClaimSpec returns the spec of a claim that is created from the snapshot of another claim. It is bound to no volume
// that exists, and requests as much storage as the snapshot needs.
func ClaimSpec(of *corev1.PersistentVolumeClaimSpec, taken *csi.VolumeSnapshot) corev1.PersistentVolumeClaimSpec {
	of = of.DeepCopy()
	spec := corev1.PersistentVolumeClaimSpec{
		AccessModes:               of.AccessModes,
		Resources:                 of.Resources,
		StorageClassName:          of.StorageClassName,
		VolumeAttributesClassName: of.VolumeAttributesClassName,
		VolumeMode:                of.VolumeMode,
		DataSource: &corev1.TypedLocalObjectReference{APIGroup: ptr.To(csi.GroupName), Kind: csi.Kind,
			Name: taken.Name},
		DataSourceRef: &corev1.TypedObjectReference{APIGroup: ptr.To(csi.GroupName), Kind: csi.Kind,
			Name: taken.Name},
	}
	if taken.Status == nil || taken.Status.RestoreSize == nil {
		return spec
	}
	if size, ok := spec.Resources.Requests[corev1.ResourceStorage]; ok && size.Cmp(*taken.Status.RestoreSize) >= 0 {
		return spec
	}
	if spec.Resources.Requests == nil {
		spec.Resources.Requests = corev1.ResourceList{}
	}
	spec.Resources.Requests[corev1.ResourceStorage] = taken.Status.RestoreSize.DeepCopy()
	return spec
}
