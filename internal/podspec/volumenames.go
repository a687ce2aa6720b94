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

// volumeNames says what the VMI's volumes are called in the Pod: as in the VMI, unless the Pod has a volume of its own
// of that name. The Pod's own keep theirs, by which the agent finds them on the node; the VMI's are found by where they
// are mounted, so that what they are called matters to nobody.
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

// ownVolumes are the names of the volumes that the Pod has beside the VMI's.
func ownVolumes(vmi *v1.VirtualMachineInstance) map[string]bool {
	own := map[string]bool{
		launcherpod.SocketsVolume: true, launcherpod.RuntimeVolume: true, launcherpod.EphemeralDisksVolume: true,
		launcherpod.KernelBootVolume: true, launcherpod.StateVolume: true, launcherpod.ConsoleLogVolume: true,
		hugepagesVolume: true,
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

// freeName puts the first number behind a name with which nothing else has it.
func freeName(name string, taken map[string]bool) string {
	for i := 2; ; i++ {
		suffix := "-" + strconv.Itoa(i)
		begin := name[:min(len(name), validation.DNS1123LabelMaxLength-len(suffix))]
		if free := strings.TrimRight(begin, "-") + suffix; !taken[free] {
			return free
		}
	}
}
