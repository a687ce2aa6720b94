// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/nodeloss"
)

// node: the node or its agent does not answer.
func node(s *Snapshot) []Finding {
	if s.VMI == nil || s.VMI.Status.NodeName == "" || s.VMI.IsFinal() {
		return nil
	}
	name := s.VMI.Status.NodeName
	if s.Node != nil {
		for _, c := range s.Node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return one(s.lost(c))
			}
		}
	}
	condition := s.condition(v1.VirtualMachineInstanceNodeUnresponsive)
	if s.Node == nil && condition.Status == corev1.ConditionTrue && condition.Reason != v1.VirtualMachineInstanceReasonAgentSilent {
		return one(Finding{
			What: fmt.Sprintf("Node %s does not answer, and its guest may still run there.", name), Why: []string{short(condition.Message)},
			Do: "Ask who runs the cluster to mend the node, or to release its guests.",
		})
	}
	silent := s.VMI.Status.Reason == "NodeUnresponsive"
	unready := s.Agent != nil && !podReady(s.Agent)
	if !silent && !unready {
		return nil
	}
	f := Finding{
		What: fmt.Sprintf("The agent of node %s does not answer: what is known about the guest may be old. The guest is left alone.", name),
		Do:   "See why virt-handler does not run there:",
		Commands: []string{
			fmt.Sprintf("kubectl --namespace %s get pods --selector kubevirt.io=virt-handler --field-selector spec.nodeName=%s", s.installNamespace(), name),
			fmt.Sprintf("kubectl --namespace %s logs --selector kubevirt.io=virt-handler --tail=50", s.installNamespace()),
		},
	}
	if s.Agent != nil {
		for _, status := range s.Agent.Status.ContainerStatuses {
			if waiting := status.State.Waiting; waiting != nil {
				f.Why = append(f.Why, fmt.Sprintf("%s: %s", waiting.Reason, short(waiting.Message)))
			}
		}
	}
	return one(f)
}

// lost is about a node that does not answer. Its guest may run, and only somebody who knows better can say that it does not.
func (s *Snapshot) lost(ready corev1.NodeCondition) Finding {
	name := s.VMI.Status.NodeName
	f := Finding{
		What: fmt.Sprintf("Node %s has not been ready for %s, and its guest may still run there.", name, age(s.Now, ready.LastTransitionTime.Time)),
		Why:  []string{short(ready.Message)},
	}
	if nodeloss.OutOfService(s.Node) {
		f.What = fmt.Sprintf("Node %s is out of service: the guest counts as ended as soon as its launcher Pod is removed.", name)
		f.Do, f.Commands = "Nothing: that is done by itself. When the node is back:", []string{nodeloss.Return(name)}
		return f
	}
	f.Why = append(f.Why, "Until that is ruled out no other guest of the VM starts: two of them would ruin its disks.")
	f.Do = "Mend the node. If it is powered off, and only then, release its guests:"
	f.Commands = []string{"kubectl describe node " + name, nodeloss.Release(name)}
	return f
}

func (s *Snapshot) installNamespace() string {
	if s.Install.Namespace == "" {
		return "kubevirt"
	}
	return s.Install.Namespace
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// running: all is well, and this is how the guest is reached.
func running(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil {
		return nil
	}
	isPaused := s.condition(v1.VirtualMachineInstancePaused).Status == corev1.ConditionTrue
	if isPaused {
		return nil
	}
	f := Finding{
		Good: true,
		What: fmt.Sprintf("The guest runs on node %s%s.", s.VMI.Status.NodeName, s.duration()),
		Do:   "Reach it:",
		Commands: []string{
			fmt.Sprintf("%s console %s --namespace %s", s.Program, s.Name, s.Namespace),
			fmt.Sprintf("%s vnc %s --namespace %s --web", s.Program, s.Name, s.Namespace),
			fmt.Sprintf("%s ssh USER@vmi/%s/%s", s.Program, s.Name, s.Namespace),
		},
	}
	if len(node(s)) > 0 {
		f.Good, f.What = false, fmt.Sprintf("When node %s was last heard of, the guest ran there%s.", s.VMI.Status.NodeName, s.duration())
		f.Do, f.Commands = "", nil
	}
	if addresses := s.addresses(); len(addresses) > 0 {
		f.Why = append(f.Why, "Its addresses: "+strings.Join(addresses, ", "))
	}
	if os := s.VMI.Status.GuestOSInfo.PrettyName; os != "" {
		f.Why = append(f.Why, "Its system: "+short(os))
	}
	if s.condition(v1.VirtualMachineInstanceAgentConnected).Status != corev1.ConditionTrue {
		f.Why = append(f.Why, "No guest agent answers: its users, file systems and system are not known (install qemu-guest-agent in the guest).")
	}
	found := []Finding{f}
	if ready := s.condition(v1.VirtualMachineInstanceReady); ready.Status == corev1.ConditionFalse && len(node(s)) == 0 {
		found = append(found, Finding{What: "It is not ready: " + ready.Reason + ".", Why: []string{short(ready.Message)}, Do: "If it has a readinessProbe, see whether the guest answers it."})
	}
	if restart := s.vmCondition(v1.VirtualMachineRestartRequired); restart.Status == corev1.ConditionTrue {
		found = append(found, Finding{
			What: "The VM was changed, and the guest runs as it was before.", Why: []string{short(restart.Message)},
			Do: "Restart it when it suits you:", Commands: []string{fmt.Sprintf("%s restart %s --namespace %s", s.Program, s.Name, s.Namespace)},
		})
	}
	return found
}

func (s *Snapshot) duration() string {
	for _, t := range s.VMI.Status.PhaseTransitionTimestamps {
		if t.Phase == v1.Running {
			return " for " + age(s.Now, t.PhaseTransitionTimestamp.Time)
		}
	}
	return ""
}

func (s *Snapshot) addresses() []string {
	var all []string
	for _, i := range s.VMI.Status.Interfaces {
		if len(i.IPs) > 0 {
			all = append(all, i.IPs...)
		} else if i.IP != "" {
			all = append(all, i.IP)
		}
	}
	return all
}
