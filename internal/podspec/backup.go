// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"strconv"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Annotations by which Velero runs a command in a Pod before and after it backs up the Pod's volumes.
// Source: Velero's documentation, "Backup Hooks".
const (
	preHook  = "pre.hook.backup.velero.io/"
	postHook = "post.hook.backup.velero.io/"

	hookContainer = "container"
	hookCommand   = "command"
	hookTimeout   = "timeout"
)

// SkipBackupHooksAnnotation on a VMI, with a true value, leaves the hooks out of its launcher Pod, and with another puts them there
// whatever the KubeVirt object says. On the KubeVirt object it is for all VMIs. Source: kubevirt/kubevirt pkg/storage/velero.
const SkipBackupHooksAnnotation = "kubevirt.io/skip-backup-hooks"

// SkipsBackupHooks says that an object's annotations ask for no hooks. A value that is no truth value does not.
func SkipsBackupHooks(annotations map[string]string) bool {
	skip, err := strconv.ParseBool(annotations[SkipBackupHooksAnnotation])
	return err == nil && skip
}

// hookLimit is how long a hook may take. KubeVirt's value.
const hookLimit = "60s"

// CopyBackupHooks makes the annotations of a launcher Pod those by which a backup freezes and thaws the guest. With the annotation
// kubevirt.io/skip-backup-hooks, of the VMI or else of the KubeVirt object, they are what the VMI's own are.
// Source: kubevirt/kubevirt pkg/storage/pod/annotations/generator.go.
func CopyBackupHooks(to map[string]string, vmi *v1.VirtualMachineInstance, cfg Config) {
	skip := cfg.SkipBackupHooks
	if _, said := vmi.Annotations[SkipBackupHooksAnnotation]; said {
		skip = SkipsBackupHooks(vmi.Annotations)
	}
	for hook, flag := range map[string]string{preHook: "--freeze", postHook: "--unfreeze"} {
		for key, value := range map[string]string{
			hookContainer: launcherpod.ComputeContainer,
			hookCommand:   fmt.Sprintf(`[%q, %q, "--name", %q, "--namespace", %q]`, launcherpod.FreezerBinary, flag, vmi.Name, vmi.Namespace),
			hookTimeout:   hookLimit,
		} {
			own, has := vmi.Annotations[hook+key]
			switch {
			case !skip:
				to[hook+key] = value
			case has:
				to[hook+key] = own
			default:
				delete(to, hook+key)
			}
		}
	}
}
