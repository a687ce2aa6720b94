// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
)

// ReasonNoKubeVirt is the reason while the cluster has no KubeVirt object. KubeVirt does not have it: without the
// object it serves no VMs.
const ReasonNoKubeVirt = "KubeVirtNotFound"

// requireKubeVirt delays a VMI until there is a KubeVirt object. Without it no node has an agent, and the Pod could not
// be rendered with its configuration.
func (s *scope) requireKubeVirt(_ context.Context) error {
	if !s.preparing() || s.pod != nil || s.config.KubeVirt != "" {
		return nil
	}
	s.problem = &problem{
		reason: ReasonNoKubeVirt,
		message: fmt.Sprintf("There is no KubeVirt object in namespace %s, so that no node can run VMs: "+
			"create one, and the VM starts", s.namespace),
		unschedulable: true,
	}
	return nil
}
