// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package quantity_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/quantity"
)

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
