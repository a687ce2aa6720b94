// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"maps"
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

// setBackupHooks adds the annotations by which a backup freezes and thaws the guest to those of a new launcher Pod. With the annotation
// kubevirt.io/skip-backup-hooks, of the VMI or else of the KubeVirt object, the Pod has what the VMI has.
// Source: kubevirt/kubevirt pkg/storage/pod/annotations/generator.go.
func setBackupHooks(to map[string]string, vmi *v1.VirtualMachineInstance, cfg Config) {
	if !skipsBackupHooks(vmi, cfg) {
		maps.Copy(to, backupHooks(vmi))
	}
}

// SwitchBackupHooks makes the annotations of a launcher Pod that runs follow the switch. It takes away what is ours, and takes nothing
// from the VMI: Velero runs the command of a hook in the Pod, which is more than a right to annotate VMIs is for.
func SwitchBackupHooks(to map[string]string, vmi *v1.VirtualMachineInstance, cfg Config) {
	ours := backupHooks(vmi)
	if !skipsBackupHooks(vmi, cfg) {
		maps.Copy(to, ours)
		return
	}
	for _, hook := range []string{preHook, postHook} {
		if to[hook+hookCommand] != ours[hook+hookCommand] {
			continue // It came with the Pod.
		}
		for _, key := range []string{hookContainer, hookCommand, hookTimeout} {
			delete(to, hook+key)
		}
	}
}

func skipsBackupHooks(vmi *v1.VirtualMachineInstance, cfg Config) bool {
	if _, said := vmi.Annotations[SkipBackupHooksAnnotation]; said {
		return SkipsBackupHooks(vmi.Annotations)
	}
	return cfg.SkipBackupHooks
}

// backupHooks are the annotations by which a backup freezes and thaws a guest.
func backupHooks(vmi *v1.VirtualMachineInstance) map[string]string {
	out := map[string]string{}
	for hook, flag := range map[string]string{preHook: "--freeze", postHook: "--unfreeze"} {
		out[hook+hookContainer] = launcherpod.ComputeContainer
		out[hook+hookCommand] = fmt.Sprintf(`[%q, %q, "--name", %q, "--namespace", %q]`, launcherpod.FreezerBinary, flag, vmi.Name, vmi.Namespace)
		out[hook+hookTimeout] = hookLimit
	}
	return out
}
