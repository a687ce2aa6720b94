// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// setIgnored sets the condition that names the fields and feature gates of the object that have no effect, or removes
// it. Admission warns about the same, but an object may be older than the webhooks, and warnings are easily missed.
func setIgnored(c *conditionList, spec *v1.KubeVirtSpec) {
	ignored := specsupport.Warnings(specsupport.UnimplementedInKubeVirt(field.NewPath("spec"), spec))
	if developer := spec.Configuration.DeveloperConfiguration; developer != nil {
		for _, gate := range developer.FeatureGates {
			if reason, not := specsupport.UnimplementedGates[gate]; not {
				ignored = append(ignored, fmt.Sprintf("feature gate %s has no effect: %s", gate, reason))
			} else if _, known := clusterconfig.StageOf(gate); !known {
				ignored = append(ignored, fmt.Sprintf("feature gate %s has no effect: it is not known", gate))
			}
		}
	}
	if len(ignored) == 0 {
		c.remove(v1.KubeVirtConditionFieldsIgnored)
		return
	}
	c.set(v1.KubeVirtConditionFieldsIgnored, true, specsupport.ReasonNotImplemented, strings.Join(ignored, "; "))
}
