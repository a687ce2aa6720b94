// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// hugepagesVolume and hugepagesDir are the volume and the mount path of huge pages.
const (
	hugepagesVolume = "hugepages"
	hugepagesDir    = "/dev/hugepages"
)

// storage collects the volumes and mounts of the Pod.
type storage struct {
	volumes     []corev1.Volume
	mounts      []corev1.VolumeMount
	devices     []corev1.VolumeDevice
	pullSecrets []corev1.LocalObjectReference
	names       volumeNames
}

// renderVolumes returns the launcher's own volumes and those of the VMI.
func renderVolumes(vmi *v1.VirtualMachineInstance, cfg Config) (*storage, error) {
	s := &storage{names: nameVolumes(vmi)}
	s.emptyDir(launcherpod.SocketsVolume, launcherpod.SocketsDir, corev1.StorageMediumDefault)
	s.emptyDir(launcherpod.RuntimeVolume, launcherpod.RuntimeDir, corev1.StorageMediumDefault)
	s.emptyDir(launcherpod.EphemeralDisksVolume, launcherpod.EphemeralDisksDir, corev1.StorageMediumDefault)
	if !vmi.Spec.Domain.Devices.DisableHotplug {
		s.emptyDir(launcherpod.HotplugDisksVolume, launcherpod.HotplugDisksDir, corev1.StorageMediumDefault)
	}
	if LogsConsole(vmi) {
		s.emptyDir(launcherpod.ConsoleLogVolume, launcherpod.ConsoleLogDir, corev1.StorageMediumDefault)
	}
	if hugepages(vmi) != nil {
		s.emptyDir(hugepagesVolume, hugepagesDir, corev1.StorageMediumHugePages)
	}
	s.kernelBoot(vmi)
	if err := s.state(vmi, cfg); err != nil {
		return nil, err
	}
	for _, secret := range credentialSecrets(vmi) {
		name := launcherpod.CredentialsVolume(secret)
		s.files(name, path.Join(launcherpod.CredentialsDir, name), corev1.VolumeSource{Secret: secretSource(secret, nil)})
	}
	for i := range vmi.Spec.Volumes {
		if IsHotplugged(vmi, &vmi.Spec.Volumes[i], cfg) {
			continue
		}
		if err := s.volume(&vmi.Spec.Volumes[i], cfg); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *storage) volume(v *v1.Volume, cfg Config) error {
	if claim := ClaimName(v); claim != "" {
		s.claim(v, claim, cfg.Claims[v.Name])
		return nil
	}
	if source := filesSource(v); source != nil {
		s.files(launcherpod.FilesVolume(v.Name), launcherpod.VolumeFilesDir(v.Name), *source)
		return nil
	}
	switch {
	case v.ContainerDisk != nil:
		disk := v.ContainerDisk
		s.image(s.names.inPod(v.Name), launcherpod.ContainerDiskDir(v.Name), disk.Image, disk.ImagePullPolicy,
			disk.ImagePullSecret)
	case v.HostDisk != nil:
		s.hostDisk(v)
	case v.CloudInitNoCloud != nil:
		s.cloudInit(v.Name, v.CloudInitNoCloud.UserDataSecretRef, v.CloudInitNoCloud.NetworkDataSecretRef)
	case v.CloudInitConfigDrive != nil:
		s.cloudInit(v.Name, v.CloudInitConfigDrive.UserDataSecretRef, v.CloudInitConfigDrive.NetworkDataSecretRef)
	case v.EmptyDisk != nil: // is a file in the volume of ephemeral disks
	default:
		return fmt.Errorf("volume %s: the launcher Pod cannot have a volume of its type", v.Name)
	}
	return nil
}

// ClaimName returns the name of the PersistentVolumeClaim of a volume, or "". The claim of a DataVolume has the same
// name.
func ClaimName(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil && v.Ephemeral.PersistentVolumeClaim != nil:
		return v.Ephemeral.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	default:
		return ""
	}
}

func (s *storage) emptyDir(name, dir string, medium corev1.StorageMedium) {
	s.volumes = append(s.volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium},
	}})
	s.mounts = append(s.mounts, corev1.VolumeMount{Name: name, MountPath: dir})
}

func (s *storage) image(name, dir, image string, policy corev1.PullPolicy, secret string) {
	s.volumes = append(s.volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: image, PullPolicy: policy},
	}})
	s.mounts = append(s.mounts, corev1.VolumeMount{Name: name, MountPath: dir, ReadOnly: true})
	reference := corev1.LocalObjectReference{Name: secret}
	if secret != "" && !slices.Contains(s.pullSecrets, reference) {
		s.pullSecrets = append(s.pullSecrets, reference)
	}
}

func (s *storage) kernelBoot(vmi *v1.VirtualMachineInstance) {
	firmware := vmi.Spec.Domain.Firmware
	if firmware == nil || firmware.KernelBoot == nil || firmware.KernelBoot.Container == nil {
		return
	}
	c := firmware.KernelBoot.Container
	s.image(launcherpod.KernelBootVolume, launcherpod.KernelBootDir, c.Image, c.ImagePullPolicy, c.ImagePullSecret)
}

// state mounts the whole claim. virt-launcher creates the directories in it, because those that the kubelet creates for
// a subPath belong to root if the file system does not support fsGroup.
func (s *storage) state(vmi *v1.VirtualMachineInstance, cfg Config) error {
	if !vmi.Spec.HasPersistentState() {
		return nil
	}
	if cfg.StateClaim == "" {
		return errors.New("the claim for the TPM's and EFI's state is not known")
	}
	s.volumes = append(s.volumes, corev1.Volume{Name: launcherpod.StateVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: cfg.StateClaim},
	}})
	s.mounts = append(s.mounts, corev1.VolumeMount{Name: launcherpod.StateVolume, MountPath: launcherpod.StateDir})
	return nil
}

// environment returns the environment of virt-launcher: what it needs to know of the persistent state.
func environment(vmi *v1.VirtualMachineInstance, cfg Config) []corev1.EnvVar {
	if !vmi.Spec.HasPersistentState() {
		return nil
	}
	var out []corev1.EnvVar
	if firmware := vmi.Spec.Domain.Firmware; firmware != nil && firmware.UUID != "" {
		out = append(out, corev1.EnvVar{Name: launcherpod.FirmwareUUIDEnv, Value: string(firmware.UUID)})
	}
	if cfg.StateShared {
		out = append(out, corev1.EnvVar{Name: launcherpod.SharedStateEnv, Value: launcherpod.StateDir})
	}
	return out
}

func (s *storage) claim(v *v1.Volume, claim string, info Claim) {
	source := corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}
	readOnly := false
	switch {
	case v.PersistentVolumeClaim != nil:
		source.ReadOnly = v.PersistentVolumeClaim.ReadOnly
		readOnly = source.ReadOnly
	case v.Ephemeral != nil:
		// The guest writes to an overlay. Other guests may use the same claim, so QEMU must not write to it. A block device
		// has no read-only mount, but is read-only if the source is.
		source.ReadOnly = v.Ephemeral.PersistentVolumeClaim.ReadOnly || info.Block
		readOnly = true
	}
	name := s.names.inPod(v.Name)
	s.volumes = append(s.volumes,
		corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &source}})
	if info.Block {
		s.devices = append(s.devices, corev1.VolumeDevice{Name: name, DevicePath: launcherpod.BlockDevice(v.Name)})
		return
	}
	s.mounts = append(s.mounts, corev1.VolumeMount{Name: name, MountPath: launcherpod.DiskDir(v.Name), ReadOnly: readOnly})
}

func (s *storage) hostDisk(v *v1.Volume) {
	name := s.names.inPod(v.Name)
	// The directory of a disk that must exist must exist as well: on a node without it the kubelet reports an error.
	kind := corev1.HostPathDirectory
	if v.HostDisk.Type == v1.HostDiskExistsOrCreate {
		kind = corev1.HostPathDirectoryOrCreate
	}
	s.volumes = append(s.volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: path.Dir(v.HostDisk.Path), Type: &kind},
	}})
	s.mounts = append(s.mounts, corev1.VolumeMount{Name: name, MountPath: launcherpod.DiskDir(v.Name)})
}

func (s *storage) cloudInit(name string, userData, networkData *corev1.LocalObjectReference) {
	dir := launcherpod.SecretDir(name)
	s.secret(launcherpod.UserDataVolume(name), path.Join(dir, "userdata"), userData)
	s.secret(launcherpod.NetworkDataVolume(name), path.Join(dir, "networkdata"), networkData)
}

func (s *storage) secret(name, dir string, secret *corev1.LocalObjectReference) {
	if secret == nil || secret.Name == "" {
		return
	}
	s.files(name, dir, corev1.VolumeSource{Secret: secretSource(secret.Name, nil)})
}

// volumeNames maps the names of the VMI's volumes to those in the Pod. They are equal, unless the Pod has a volume of
// its own with the name. The Pod's own volumes keep their names, because the agent finds their directories on the node
// by name. The VMI's volumes are found by mount path, so that they can be renamed.
type volumeNames map[string]string

func (n volumeNames) inPod(volume string) string { return n[volume] }

func nameVolumes(vmi *v1.VirtualMachineInstance) volumeNames {
	own := ownVolumes(vmi)
	taken := map[string]bool{}
	for name := range own {
		taken[name] = true
	}
	for i := range vmi.Spec.Volumes {
		taken[vmi.Spec.Volumes[i].Name] = true
	}
	names := volumeNames{}
	for i := range vmi.Spec.Volumes {
		name := vmi.Spec.Volumes[i].Name
		names[name] = name
		if own[name] {
			names[name] = freeName(name, taken)
			taken[names[name]] = true
		}
	}
	return names
}

// ownVolumes returns the names of the Pod's volumes that are not the VMI's.
func ownVolumes(vmi *v1.VirtualMachineInstance) map[string]bool {
	own := map[string]bool{
		launcherpod.SocketsVolume: true, launcherpod.RuntimeVolume: true, launcherpod.EphemeralDisksVolume: true,
		launcherpod.KernelBootVolume: true, launcherpod.StateVolume: true, launcherpod.ConsoleLogVolume: true,
		launcherpod.HotplugDisksVolume: true, hugepagesVolume: true,
	}
	for _, secret := range credentialSecrets(vmi) {
		own[launcherpod.CredentialsVolume(secret)] = true
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if filesSource(v) != nil {
			own[launcherpod.FilesVolume(v.Name)] = true
		}
		if v.CloudInitNoCloud != nil || v.CloudInitConfigDrive != nil {
			own[launcherpod.UserDataVolume(v.Name)] = true
			own[launcherpod.NetworkDataVolume(v.Name)] = true
		}
	}
	return own
}

// freeName returns the name with the first number as suffix that makes it unused.
func freeName(name string, taken map[string]bool) string {
	for i := 2; ; i++ {
		suffix := "-" + strconv.Itoa(i)
		prefix := name[:min(len(name), validation.DNS1123LabelMaxLength-len(suffix))]
		if free := strings.TrimRight(prefix, "-") + suffix; !taken[free] {
			return free
		}
	}
}

// StateClaim returns the name of the state claim that a Pod uses, or "".
func StateClaim(pod *corev1.Pod) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == launcherpod.StateVolume && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}
