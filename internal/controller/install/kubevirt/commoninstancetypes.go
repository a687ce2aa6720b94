// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"fmt"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/commoninstancetypes"
)

// The common instance types and preferences are small, and VMs of all namespaces may refer to them: only their owner
// may change them.
// +kubebuilder:rbac:groups=instancetype.kubevirt.io,resources=virtualmachineclusterinstancetypes;virtualmachineclusterpreferences,verbs=list;watch;create;patch;delete

// Reasons of the condition CommonInstancetypesDeployed.
const (
	// ReasonForeignInstancetypes means that objects with the names of common ones belong to another client, and are left
	// unchanged.
	ReasonForeignInstancetypes = "ForeignObjects"
	// ReasonCommonInstancetypesFailed means that the common ones could not be applied or removed.
	ReasonCommonInstancetypesFailed = "RequestsFailed"
)

// maxForeignNamed is how many objects of other clients the condition names.
const maxForeignNamed = 10

func (s *Scope) commonInstancetypes() commoninstancetypes.Installer {
	return commoninstancetypes.Installer{Client: s.Client, APIReader: s.APIReader}
}

// syncCommonInstancetypes applies the common instance types and preferences, or removes them if they are not wanted. A
// failure is reported by a condition of its own: guests without them are not affected.
func syncCommonInstancetypes(ctx context.Context, s *Scope) {
	if s.Config.CommonInstancetypes {
		s.CommonForeign, s.CommonErr = s.commonInstancetypes().Apply(ctx)
		return
	}
	_, s.CommonErr = s.commonInstancetypes().Remove(ctx)
}

// setCommonInstancetypes sets the condition CommonInstancetypesDeployed, or removes it if there is nothing to report.
func setCommonInstancetypes(s *Scope, c *conditionList) {
	switch {
	case s.CommonErr != nil:
		c.set(v1.KubeVirtConditionCommonInstancetypesDeployed, false, ReasonCommonInstancetypesFailed, s.CommonErr.Error())
	case len(s.CommonForeign) > 0:
		named := s.CommonForeign[:min(len(s.CommonForeign), maxForeignNamed)]
		more := ""
		if n := len(s.CommonForeign) - len(named); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		c.set(v1.KubeVirtConditionCommonInstancetypesDeployed, false, ReasonForeignInstancetypes, fmt.Sprintf(
			"%s%s already existed or were taken over by another client, and are left unchanged: delete them to get the common ones, "+
				"or set spec.configuration.commonInstancetypesDeployment.enabled to false", strings.Join(named, ", "), more))
	default:
		c.remove(v1.KubeVirtConditionCommonInstancetypesDeployed)
	}
}
