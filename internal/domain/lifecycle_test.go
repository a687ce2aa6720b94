// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestLifecycle(t *testing.T) {
	for name, tc := range map[string]struct {
		policy   *v1.RebootPolicy
		onReboot string
	}{
		"default":   {nil, "restart"},
		"reboot":    {ptr.To(v1.RebootPolicyReboot), "restart"},
		"terminate": {ptr.To(v1.RebootPolicyTerminate), "destroy"},
	} {
		t.Run(name, func(t *testing.T) {
			got := makeGuest().domainSpec(func(d *v1.DomainSpec) { d.RebootPolicy = tc.policy }).build(t)
			expectEqual(t, []string{got.OnPoweroff, got.OnReboot, got.OnCrash}, []string{"destroy", tc.onReboot, "destroy"})
		})
	}
}
