// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"slices"
	"testing"

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
		arguments, got := slices.Concat(pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args), ""
		if i := slices.Index(arguments, "--v"); i >= 0 {
			got = arguments[i+1]
		}
		if got != tc.want {
			t.Errorf("label %q where the cluster has %d: --v %q, want %q", tc.label, tc.cluster, got, tc.want)
		}
	}
}
