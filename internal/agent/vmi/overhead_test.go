// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestSetMemoryOverhead(t *testing.T) {
	for name, tc := range map[string]struct {
		annotation string
		disabled   []string
		want       string
	}{
		"of the Pod":     {annotation: "104857600", want: "100Mi"},
		"gate disabled":  {annotation: "104857600", disabled: []string{"VmiMemoryOverheadReport"}},
		"no number":      {annotation: "100Mi"},
		"no annotation":  {},
		"a negative one": {annotation: "-1"},
	} {
		s := &scope{Scope: phase.Scope{VMI: &v1.VirtualMachineInstance{}, Pod: &corev1.Pod{}}}
		s.Config.FeatureGates = clusterconfig.NewFeatureGates(nil, tc.disabled)
		s.Pod.Annotations = map[string]string{v1.MemoryOverheadAnnotationBytes: tc.annotation}
		s.setMemoryOverhead()
		if s.VMI.Status.Memory != nil {
			t.Errorf("%s: set the status of memory that was not read", name)
		}
		s.VMI.Status.Memory = &v1.MemoryStatus{MemoryOverhead: ptr.To(resource.MustParse("7Mi"))}
		s.setMemoryOverhead()
		got := ""
		if q := s.VMI.Status.Memory.MemoryOverhead; q != nil {
			got = q.String()
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
