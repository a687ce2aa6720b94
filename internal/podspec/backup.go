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

// SkipBackupHooksAnnotation omits the hooks from the launcher Pod of a VMI if it is true. On the KubeVirt object it
// applies to all VMIs that do not have it themselves. Source: kubevirt/kubevirt pkg/storage/velero.
const SkipBackupHooksAnnotation = "kubevirt.io/skip-backup-hooks"

// SkipsBackupHooks reports whether an object's annotations disable the hooks. A value that is not a boolean does not.
func SkipsBackupHooks(annotations map[string]string) bool {
	skip, err := strconv.ParseBool(annotations[SkipBackupHooksAnnotation])
	return err == nil && skip
}

// hookLimit is the timeout of a hook. KubeVirt's value.
const hookLimit = "60s"

// setBackupHooks adds the annotations for Velero to those of a new launcher Pod, unless the hooks are disabled. The
// annotations of the VMI are in the Pod either way. Source: kubevirt/kubevirt pkg/storage/pod/annotations/generator.go.
func setBackupHooks(to map[string]string, vmi *v1.VirtualMachineInstance, cfg Config) {
	if !skipsBackupHooks(vmi, cfg) {
		maps.Copy(to, backupHooks(vmi))
	}
}

// SwitchBackupHooks adds or removes the annotations for Velero on a running launcher Pod. It removes only the hooks
// that Vireo has added. It does not copy hooks from the VMI, because Velero runs their commands in the Pod, which the
// right to annotate VMIs must not allow.
func SwitchBackupHooks(to map[string]string, vmi *v1.VirtualMachineInstance, cfg Config) {
	own := backupHooks(vmi)
	if !skipsBackupHooks(vmi, cfg) {
		maps.Copy(to, own)
		return
	}
	for _, hook := range []string{preHook, postHook} {
		if to[hook+hookCommand] != own[hook+hookCommand] {
			continue // A hook of the VMI.
		}
		for _, key := range []string{hookContainer, hookCommand, hookTimeout} {
			delete(to, hook+key)
		}
	}
}

func skipsBackupHooks(vmi *v1.VirtualMachineInstance, cfg Config) bool {
	if _, set := vmi.Annotations[SkipBackupHooksAnnotation]; set {
		return SkipsBackupHooks(vmi.Annotations)
	}
	return cfg.SkipBackupHooks
}

// backupHooks returns the annotations with which Velero freezes and thaws a guest.
func backupHooks(vmi *v1.VirtualMachineInstance) map[string]string {
	out := map[string]string{}
	for hook, flag := range map[string]string{preHook: "--freeze", postHook: "--unfreeze"} {
		out[hook+hookContainer] = launcherpod.ComputeContainer
		out[hook+hookCommand] = fmt.Sprintf(`[%q, %q, "--name", %q, "--namespace", %q]`, launcherpod.FreezerBinary, flag, vmi.Name, vmi.Namespace)
		out[hook+hookTimeout] = hookLimit
	}
	return out
}
