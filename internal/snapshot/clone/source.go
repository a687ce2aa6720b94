// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
)

// textBackendStorage: the state of TPM and EFI identifies a guest, and must not be in two VMs.
const textBackendStorage = "Clone of source with backendstorage is not supported"

func backendStorage(template *v1.VirtualMachineInstanceTemplateSpec) string {
	if template == nil || !template.Spec.HasPersistentState() {
		return ""
	}
	return textBackendStorage
}

// withoutSnapshots returns which volumes of a VM a snapshot would not include, according to the VM's status.
func withoutSnapshots(vm *v1.VirtualMachine) string {
	if vm.Spec.Template == nil {
		return ""
	}
	var texts []string
	for i := range vm.Spec.Template.Spec.Volumes {
		volume := &vm.Spec.Template.Spec.Volumes[i]
		if !hasClaim(volume) {
			continue
		}
		index := slices.IndexFunc(vm.Status.VolumeSnapshotStatuses, func(status v1.VolumeSnapshotStatus) bool { return status.Name == volume.Name })
		switch {
		case index < 0:
			texts = append(texts, fmt.Sprintf("Virtual Machine volume %s snapshot support unknown", volume.Name))
		case !vm.Status.VolumeSnapshotStatuses[index].Enabled:
			texts = append(texts, fmt.Sprintf("Virtual Machine volume %s does not support snapshots", volume.Name))
		}
	}
	return joined(texts)
}

// joined joins the texts about several volumes, with a line for each as in KubeVirt.
func joined(texts []string) string { return strings.Join(texts, "\n") }

func hasClaim(volume *v1.Volume) bool {
	return volume.PersistentVolumeClaim != nil || volume.DataVolume != nil
}

// checkContent returns an error if the snapshot does not contain everything that a clone needs.
func (s *scope) checkContent() error {
	content := s.Content
	if content == nil {
		return fmt.Errorf("snapshot content %s in namespace %s does not exist", capture.ContentName(s.Snapshot), s.Snapshot.Namespace)
	}
	if content.Spec.VirtualMachineSnapshotName == nil {
		return fmt.Errorf("cannot get snapshot name from content %s", content.Name)
	}
	if !capture.IsContentOf(content, s.Snapshot) { // KubeVirt does not check this.
		return fmt.Errorf("snapshot content %s does not belong to snapshot %s", content.Name, s.Snapshot.Name)
	}
	if problem := capture.TooManyVolumes(content); problem != "" {
		return errors.New(problem)
	}
	vm := content.Spec.Source.VirtualMachine
	if vm == nil || vm.Spec.Template == nil {
		return fmt.Errorf("snapshot content %s contains no VirtualMachine", content.Name) // KubeVirt crashes.
	}
	if backendStorage(vm.Spec.Template) != "" || hasState(content) {
		return fmt.Errorf("%s: snapshot %s/%s", textBackendStorage, s.Snapshot.Namespace, s.Snapshot.Name)
	}
	var texts []string
	for i := range vm.Spec.Template.Spec.Volumes {
		volume := &vm.Spec.Template.Spec.Volumes[i]
		if hasClaim(volume) && !slices.ContainsFunc(content.Spec.VolumeBackups, func(b snapshotv1beta1.VolumeBackup) bool { return b.VolumeName == volume.Name }) {
			texts = append(texts, fmt.Sprintf("volume %s is not backed up in snapshot %s", volume.Name, *content.Spec.VirtualMachineSnapshotName))
		}
	}
	if len(texts) > 0 {
		return errors.New(joined(texts))
	}
	return nil
}

// hasState reports whether a snapshot contains the state of TPM and EFI. Its VM may have these because of a preference, which KubeVirt does
// not consider.
func hasState(content *snapshotv1beta1.VirtualMachineSnapshotContent) bool {
	volumes := content.Spec.Source.VirtualMachine.Spec.Template.Spec.Volumes
	return slices.ContainsFunc(content.Spec.VolumeBackups, func(b snapshotv1beta1.VolumeBackup) bool {
		return b.PersistentVolumeClaim.Labels[v1.PersistentStateLabel] != "" &&
			!slices.ContainsFunc(volumes, func(of v1.Volume) bool { return of.Name == b.VolumeName })
	})
}
