// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

func TestLogVerbosityLabel(t *testing.T) {
	for _, tc := range []struct {
		label   string
		cluster uint
		want    string
	}{
		{"", 0, ""}, {"", 3, "3"}, {"2", 3, ""}, {"0", 3, ""}, {"6", 0, "4"}, {"6", 3, "4"}, {"loud", 3, "3"}, {"-1", 3, "3"},
	} {
		vmi, cfg := makeVMI(), config()
		cfg.Verbosity = tc.cluster
		if tc.label != "" {
			vmi = vmi.Label(podspec.LogVerbosityLabel, tc.label)
		}
		pod, err := podspec.Build(vmi.Obj(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := argument(pod, "--v"); got != tc.want {
			t.Errorf("label %q where the cluster has %d: --v %q, want %q", tc.label, tc.cluster, got, tc.want)
		}
	}
}

// argument returns the value of a flag of the launcher, or "".
func argument(pod *corev1.Pod, flag string) string {
	arguments := slices.Concat(pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args)
	if i := slices.Index(arguments, flag); i >= 0 {
		return arguments[i+1]
	}
	return ""
}

func TestLibvirtLogFilters(t *testing.T) {
	const (
		least  = "3:remote 4:event 3:util.json 3:util.object 3:util.dbus 3:util.netlink 3:node_device 3:rpc 3:access"
		custom = "1:qemu 3:rpc"
	)
	for name, tc := range map[string]struct {
		debug, level, annotation string
		cluster                  uint
		want                     string
	}{
		"nothing":                        {},
		"the label":                      {debug: "true", want: least + " 1:*"},
		"the label in other letters":     {debug: "TRuE", want: least + " 1:*"},
		"the label off":                  {debug: "false"},
		"another value":                  {debug: "1"},
		"a level below":                  {level: "4"},
		"a level of 5":                   {level: "5", want: least + " 3:util.threadjob 3:cpu.cpu 3:qemu.qemu_monitor 3:qemu.qemu_monitor_json 3:conf.domain_addr 1:*"},
		"a level of 6":                   {level: "6", want: least + " 3:util.threadjob 3:cpu.cpu 3:qemu.qemu_monitor 1:*"},
		"a level of 7":                   {level: "7", want: least + " 3:util.threadjob 3:cpu.cpu 1:*"},
		"a level of 8":                   {level: "8", want: least + " 1:*"},
		"the level goes before":          {debug: "true", level: "7", want: least + " 3:util.threadjob 3:cpu.cpu 1:*"},
		"a low level with the label":     {debug: "true", level: "1", want: least + " 1:*"},
		"the cluster's level":            {cluster: 6, want: least + " 1:*"},
		"the label replaces the cluster": {cluster: 6, level: "2"},
		"filters of one's own":           {debug: "true", level: "9", annotation: custom, want: custom},
	} {
		t.Run(name, func(t *testing.T) {
			vmi, cfg := makeVMI().Obj(), config()
			cfg.Verbosity = tc.cluster
			for key, value := range map[string]string{podspec.DebugLogsLabel: tc.debug, podspec.LogVerbosityLabel: tc.level} {
				if value != "" {
					metav1.SetMetaDataLabel(&vmi.ObjectMeta, key, value)
				}
			}
			if tc.annotation != "" {
				metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.CustomLibvirtLogFiltersAnnotation, tc.annotation)
			}
			pod, err := podspec.Build(vmi, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := argument(pod, "--libvirt-log-filters"); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}
