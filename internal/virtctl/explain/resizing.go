// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/resize"
)

// resizing reports a change of the CPUs, the memory or the interfaces that the running guest does not have yet.
func resizing(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil {
		return nil
	}
	var found []Finding
	for _, change := range []struct {
		kind v1.VirtualMachineInstanceConditionType
		what string
	}{
		{v1.VirtualMachineInstanceVCPUChange, "CPUs"}, {v1.VirtualMachineInstanceMemoryChange, "memory"},
	} {
		if c := s.condition(change.kind); c.Status != "" {
			found = append(found, s.resized(change.what, c))
		}
	}
	if len(found) == 0 {
		found = s.rewired()
	}
	return found
}

// rewired reports interfaces that the guest is yet to get or to lose. That it needs a restart is reported by restartRequired.
func (s *Snapshot) rewired() []Finding {
	c := s.condition(v1.VirtualMachineInstanceMigrationRequired)
	f := Finding{What: "The guest does not have the interfaces of its spec yet.", Why: []string{short(c.Message)}}
	switch {
	case c.Status == corev1.ConditionTrue:
		f.Do = "Wait for its migration:"
		f.Commands = []string{fmt.Sprintf("kubectl --namespace %s get virtualmachineinstancemigrations", s.Namespace)}
	case c.Reason == v1.VirtualMachineInstanceReasonAutoMigrationPending:
		f.Do = "Wait: if nothing changes the networks of the running Pod within 15 seconds, the guest migrates."
	default:
		return nil
	}
	return one(f)
}

func (s *Snapshot) resized(what string, c v1.VirtualMachineInstanceCondition) Finding {
	f := Finding{What: fmt.Sprintf("The guest does not have the %s of its spec yet.", what)}
	if c.Message != "" {
		f.Why = []string{short(c.Message)}
	}
	if since := c.LastTransitionTime.Time; !since.IsZero() {
		f.Why = append(f.Why, fmt.Sprintf("This has been so for %s.", age(s.Now, since)))
	}
	if sync := s.condition(v1.VirtualMachineInstanceSynchronized); sync.Status == corev1.ConditionFalse {
		f.Why = append(f.Why, short(sync.Message))
	}
	switch {
	case c.Status == corev1.ConditionFalse:
		f.Do = "Restart it, or migrate it to a node with room for it:"
		f.Commands = []string{
			fmt.Sprintf("%s restart %s --namespace %s", s.Program, s.Name, s.Namespace),
			fmt.Sprintf("%s migrate %s --namespace %s", s.Program, s.Name, s.Namespace),
		}
	case c.Reason == resize.ReasonDeferred:
		f.Do = "Wait, or free resources of the node:"
		f.Commands = []string{"kubectl describe node " + s.VMI.Status.NodeName}
	case c.Reason == resize.ReasonForbidden:
		f.Do = "Ask for a larger quota, or change the VM back:"
		f.Commands = []string{fmt.Sprintf("kubectl --namespace %s describe resourcequotas,limitranges", s.Namespace)}
	case c.Reason == resize.ReasonMigration:
		f.Do = "Wait for its migration:"
		f.Commands = []string{fmt.Sprintf("kubectl --namespace %s get virtualmachineinstancemigrations", s.Namespace)}
	case c.Reason == resize.ReasonGuest:
		f.Do = "Check in the guest that it has the driver virtio_mem, and that it uses the memory:"
		f.Commands = []string{fmt.Sprintf("%s console %s --namespace %s", s.Program, s.Name, s.Namespace)}
	default:
		f.Do = "Wait: the launcher Pod gets the resources first, and then the guest."
	}
	return f
}
