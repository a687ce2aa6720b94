// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"encoding/json"
	"maps"
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
		})
	}
}

func TestSwitchBackupHooks(t *testing.T) {
	const command, timeout, post = "pre.hook.backup.velero.io/command", "pre.hook.backup.velero.io/timeout",
		"post.hook.backup.velero.io/command"
	skipped := makeVMI().Annotation(podspec.SkipBackupHooksAnnotation, "true").Annotation(command, `["/own"]`).
		Annotation("init.hook.restore.velero.io/command", `["/own"]`)
	freeze := map[string]string{}
	podspec.SwitchBackupHooks(freeze, makeVMI().Obj(), config())
	thaw := freeze[post]
	if thaw == "" || freeze[command] == "" || freeze[timeout] != "60s" {
		t.Fatalf("a Pod without hooks gets %v", freeze)
	}
	for name, tc := range map[string]struct {
		vmi        *builder.VMI
		have, want map[string]string
	}{
		"the switch is turned off":        {makeVMI(), map[string]string{"a": "b"}, with(freeze, "a", "b")},
		"the switch is turned on":         {skipped, with(freeze, "a", "b"), map[string]string{"a": "b"}},
		"the VMI gets hooks of its own":   {skipped, map[string]string{}, map[string]string{}},
		"the Pod came with one":           {skipped, map[string]string{command: `["/first"]`, timeout: "1s"}, map[string]string{command: `["/first"]`, timeout: "1s"}},
		"the Pod came with one, not both": {skipped, map[string]string{command: `["/first"]`, post: thaw}, map[string]string{command: `["/first"]`}},
	} {
		podspec.SwitchBackupHooks(tc.have, tc.vmi.Obj(), config())
		if !maps.Equal(tc.have, tc.want) {
			t.Errorf("%s: got %v, want %v", name, tc.have, tc.want)
		}
	}
}

func with(in map[string]string, key, value string) map[string]string {
	out := maps.Clone(in)
	out[key] = value
	return out
}
