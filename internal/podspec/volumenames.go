// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// volumeNames maps the names of the VMI's volumes to those in the Pod. They are equal, unless the Pod has a volume of its own
// with the name. The Pod's own volumes keep their names, because the agent finds their directories on the node by name. The
// VMI's volumes are found by mount path, so that they can be renamed.
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
