// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

func TestBackupHooks(t *testing.T) {
	skipping := config()
	skipping.SkipBackupHooks = true
	const command = "pre.hook.backup.velero.io/command"
	for name, tc := range map[string]struct {
		vmi  *builder.VMI
		cfg  podspec.Config
		want []string
	}{
		"by default":             {makeVMI(), config(), []string{"/usr/bin/virt-freezer", "--freeze", "--name", "vm", "--namespace", "default"}},
		"skipped":                {makeVMI().Annotation(podspec.SkipBackupHooksAnnotation, "true"), config(), nil},
		"skipped in the cluster": {makeVMI(), skipping, nil},
		"not skipped by the VMI": {makeVMI().Annotation(podspec.SkipBackupHooksAnnotation, "false"), skipping,
			[]string{"/usr/bin/virt-freezer", "--freeze", "--name", "vm", "--namespace", "default"}},
		"no truth value": {makeVMI().Annotation(podspec.SkipBackupHooksAnnotation, "maybe"), config(),
			[]string{"/usr/bin/virt-freezer", "--freeze", "--name", "vm", "--namespace", "default"}},
		"the VMI's own": {makeVMI().Annotation(podspec.SkipBackupHooksAnnotation, "true").Annotation(command, `["/own"]`), config(), []string{"/own"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podspec.Build(tc.vmi.Obj(), tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if text, there := pod.Annotations[command]; there {
				if err := json.Unmarshal([]byte(text), &got); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			// A switch that changes while the Pod runs gives the same.
			before := map[string]string{command: "stale", "pre.hook.backup.velero.io/timeout": "1s"}
			podspec.CopyBackupHooks(before, tc.vmi.Obj(), tc.cfg)
			if before[command] != pod.Annotations[command] || before["pre.hook.backup.velero.io/timeout"] != pod.Annotations["pre.hook.backup.velero.io/timeout"] {
				t.Errorf("a Pod that runs gets %v", before)
			}
		})
	}
}
