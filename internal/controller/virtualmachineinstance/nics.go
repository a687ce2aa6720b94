// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// inPlacePatience is how long a controller for dynamic networks has to change the networks of a running Pod before the
// guest migrates. KubeVirt's value.
const inPlacePatience = 15 * time.Second

// networkChange is what is reported about interfaces that are to be plugged into a running guest or unplugged.
type networkChange struct {
	// pending describes the change of the Pod's networks, or is empty.
	pending string
	// decided reports whether the networks cannot change in place, or have not done so for inPlacePatience.
	decided bool
}

// requestNetworkChange requests the networks of a running guest's VMI for its Pod. Only a controller for dynamic
// networks acts on that, which few clusters have; otherwise the guest migrates to a Pod that has them from its start.
// The interface itself is plugged and unplugged by the agent, which knows from the Pod and the domain which.
func (s *scope) requestNetworkChange(ctx context.Context) error {
	if s.final != nil || !s.mayResize() {
		return nil
	}
	s.networkChange = &networkChange{}
	changes := podspec.PendingNetworks(s.vmi, s.pod)
	if len(changes.Plug)+len(changes.Replace)+len(changes.Unplug) == 0 {
		return nil
	}
	if err := s.requestNetworks(ctx, changes); err != nil {
		return err
	}
	s.networkChange.pending = describeNetworks(changes)
	condition := vmistatus.FindCondition(&s.vmi.Status, v1.VirtualMachineInstanceMigrationRequired)
	wait := inPlacePatience
	if len(changes.Replace) > 0 {
		s.networkChange.decided = true
	} else if condition != nil {
		wait -= s.now.Sub(condition.LastTransitionTime.Time)
		s.networkChange.decided = condition.Reason != v1.VirtualMachineInstanceReasonAutoMigrationPending || wait <= 0
	}
	if !s.networkChange.decided {
		s.requeueIn(wait)
	}
	return nil
}

// requestNetworks writes the annotation of the Pod from which a controller for dynamic networks reads.
func (s *scope) requestNetworks(ctx context.Context, changes podspec.NetworkChanges) error {
	annotations := maps.Clone(s.pod.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	if err := podspec.ChangeNetworks(annotations, s.vmi, changes); err != nil {
		return err
	}
	if maps.Equal(annotations, s.pod.Annotations) {
		return nil
	}
	patched, err := optimistic.Patch(ctx, s.client, s.pod, func(pod *corev1.Pod) { pod.Annotations = annotations })
	if err != nil {
		return fmt.Errorf("request networks for launcher Pod %s/%s: %w", s.pod.Namespace, s.pod.Name, err)
	}
	s.pod = patched
	return nil
}

func describeNetworks(changes podspec.NetworkChanges) string {
	var parts []string
	if len(changes.Plug) > 0 {
		parts = append(parts, "is to be attached to the networks "+strings.Join(changes.Plug, ", "))
	}
	if len(changes.Replace) > 0 {
		parts = append(parts, "is to be attached to other networks for the interfaces "+strings.Join(changes.Replace, ", "))
	}
	if len(changes.Unplug) > 0 {
		parts = append(parts, "is to be detached from the networks of its interfaces "+strings.Join(changes.Unplug, ", "))
	}
	return "The launcher Pod " + strings.Join(parts, ", and ")
}

// setMigrationRequired reports whether the guest needs another Pod: for its size, or for its networks. If it does not
// migrate by itself, the condition is False and says why, which the VM's reconciler reports. While the guest migrates,
// the condition stays.
func setMigrationRequired(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	if r.resizing == nil && r.networkChange == nil {
		return
	}
	condition := v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceMigrationRequired, Status: corev1.ConditionTrue,
		Reason: v1.VirtualMachineInstanceReasonAutoMigrationDueToLiveUpdate,
	}
	obstacle := o.whyNotMigrated()
	switch {
	case r.resizing != nil && r.resizing.verdict.Migrate && (r.resizing.cpus || r.resizing.memory):
		condition.Message = r.resizing.verdict.Message
	case r.networkChange == nil || r.networkChange.pending == "":
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceMigrationRequired)
		return
	case !r.networkChange.decided:
		condition.Status, condition.Reason = corev1.ConditionFalse, v1.VirtualMachineInstanceReasonAutoMigrationPending
		condition.Message = r.networkChange.pending
	case obstacle != "":
		condition.Status, condition.Reason = corev1.ConditionFalse, v1.VirtualMachineInstanceReasonRestartRequired
		condition.Message = r.networkChange.pending + ": restart the VM to apply it. It does not migrate automatically: " +
			obstacle
	default:
		condition.Message = r.networkChange.pending + ": the guest migrates"
	}
	vmistatus.SetCondition(status, condition, metav1.NewTime(o.now))
}
