// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
)

// ReasonNoKubeVirt is the reason while the cluster has no KubeVirt object. KubeVirt itself never has it: without the
// object it has no VMs either.
const ReasonNoKubeVirt = "KubeVirtNotFound"

// awaitKubeVirt makes a VMI wait for the KubeVirt object. Without it no node has an agent, and its configuration is part
// of the Pod: one that was made before would, for instance, ask for KVM for ever where emulation is wanted.
func awaitKubeVirt(_ context.Context, s *Scope) error {
	if !s.preparing() || s.Pod != nil || s.KubeVirt != "" {
		return nil
	}
	s.Problem = &Problem{
		Reason: ReasonNoKubeVirt,
		Message: fmt.Sprintf("There is no KubeVirt object in namespace %s, so that no node can run VMs: "+
			"create one, and the VM starts", s.Namespace),
		Unschedulable: true,
	}
	return nil
}
