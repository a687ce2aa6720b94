// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestLiveUpdate(t *testing.T) {
	size := resource.MustParse("64Gi")
	for name, tc := range map[string]struct {
		given *v1.LiveUpdateConfiguration
		want  LiveUpdate
	}{
		"none":   {nil, LiveUpdate{MaxRatio: 4}},
		"empty":  {&v1.LiveUpdateConfiguration{}, LiveUpdate{MaxRatio: 4}},
		"ratio":  {&v1.LiveUpdateConfiguration{MaxHotplugRatio: 2}, LiveUpdate{MaxRatio: 2}},
		"limits": {&v1.LiveUpdateConfiguration{MaxCpuSockets: ptr.To[uint32](16), MaxGuest: &size}, LiveUpdate{MaxRatio: 4, MaxSockets: 16, MaxGuest: &size}},
	} {
		kv := &v1.KubeVirt{}
		kv.Spec.Configuration.LiveUpdateConfiguration = tc.given
		config, err := FromKubeVirt(kv)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, config.LiveUpdate); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.LiveUpdateConfiguration = &v1.LiveUpdateConfiguration{MaxGuest: ptr.To(resource.MustParse("-1Gi"))}
	config, err := FromKubeVirt(kv)
	if err == nil || !strings.Contains(err.Error(), "spec.configuration.liveUpdateConfiguration.maxGuest") || config.LiveUpdate.MaxGuest != nil {
		t.Errorf("got %v, %+v", err, config.LiveUpdate)
	}
}

func TestMigratesWorkloads(t *testing.T) {
	for _, tc := range []struct {
		methods []v1.WorkloadUpdateMethod
		want    bool
	}{
		{nil, false},
		{[]v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict}, false},
		{[]v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict, v1.WorkloadUpdateMethodLiveMigrate}, true},
	} {
		kv := &v1.KubeVirt{}
		kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = tc.methods
		if config, err := FromKubeVirt(kv); err != nil || config.MigratesWorkloads != tc.want {
			t.Errorf("%v: %t, %v", tc.methods, config.MigratesWorkloads, err)
		}
	}
}
