// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package quantity_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/quantity"
)

func TestParse(t *testing.T) {
	for text, good := range map[string]bool{
		"2Mi": true, "1E": true, "1Ei": true, "5e3": true, "1e18": true, "1e+03": true, "1E-3": true, "1e000003": true,
		"1e-2000000000": false, "1e999999999": false, "1E+100": false, "1e-0100": false, "e": false, "": false,
	} {
		if _, err := quantity.Parse(text); (err == nil) != good {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for raw, want := range map[string]string{
		``:           "",
		`{`:          "",
		`[]`:         "",
		`{"a":1e99}`: "",
		`{"metadata":{"annotations":{"a":"1e-2000000000"}},"spec":{"domain":{"memory":{"guest":"1e18"}}}}`:    "",
		`{"spec":{"domain":{"memory":{"guest": "1e-2000000000" }}}}`:                                          "spec.domain.memory.guest",
		`{"spec":{"domain":{"memory":{"Guest":"1e-2000000000"}}}}`:                                            "spec.domain.memory.Guest",
		`{"\u017fpec":{"domain":{"memory":{"guest":"1e-2000000000"}}}}`:                                       "\u017fpec.domain.memory.guest",
		`{"spec":{"domain":{"memory":{"guest":1e-2000000000}}}}`:                                              "spec.domain.memory.guest",
		`{"spec":{"domain":{"memory":{"guest":"1e999999999","guest":"1Gi"}}}}`:                                "spec.domain.memory.guest",
		`{"spec":{"domain":{"resources":{"limits":{"cpu":"1E-1000"}}}}}`:                                      "spec.domain.resources.limits.cpu",
		`{"spec":{"volumes":[{"name":"a"},{"name":"b","emptyDisk":{"capacity":"1e100"}}]}}`:                   "spec.volumes[1].emptyDisk.capacity",
		`{"spec":{"volumes":[{"name":"a","ephemeral":{}},{"name":"b","hostDisk":{"capacity":"1e+000100"}}]}}`: "spec.volumes[1].hostDisk.capacity",
	} {
		err := quantity.Check([]byte(raw), &v1.VirtualMachineInstance{})
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: got %v", raw, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want+": ")):
			t.Errorf("%s: got %v, want an error about %s", raw, err, want)
		}
	}
}

func TestGuestMemory(t *testing.T) {
	of := func(memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
	gibibyte := resource.MustParse("1Gi")
	for name, tc := range map[string]struct {
		domain v1.DomainSpec
		want   string
	}{
		"nothing":              {v1.DomainSpec{Memory: &v1.Memory{}}, ""},
		"guest":                {v1.DomainSpec{Memory: &v1.Memory{Guest: &gibibyte}, Resources: v1.ResourceRequirements{Requests: of("2Gi")}}, "1Gi"},
		"request before limit": {v1.DomainSpec{Resources: v1.ResourceRequirements{Requests: of("2Gi"), Limits: of("3Gi")}}, "2Gi"},
		"a request of 0":       {v1.DomainSpec{Resources: v1.ResourceRequirements{Requests: of("0"), Limits: of("3Gi")}}, "3Gi"},
		"huge page":            {v1.DomainSpec{Memory: &v1.Memory{Hugepages: &v1.Hugepages{PageSize: "2Mi"}}}, "2Mi"},
		"invalid huge page":    {v1.DomainSpec{Memory: &v1.Memory{Hugepages: &v1.Hugepages{PageSize: "1e99999999"}}}, ""},
	} {
		got := ""
		if q := quantity.GuestMemory(&tc.domain); q != nil {
			got = q.String()
		}
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
