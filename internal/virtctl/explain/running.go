// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/vmistatus/nodeloss"
)

// node reports that the node or its agent does not respond.
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
	if s.Node == nil && condition.Status == corev1.ConditionTrue &&
		condition.Reason != v1.VirtualMachineInstanceReasonAgentSilent {
		return one(Finding{
			What: fmt.Sprintf("Node %s does not respond, and its guest may still run there.", name),
			Why:  []string{short(condition.Message)},
			Do:   "Let the cluster's administrators repair the node, or take it out of service.",
		})
	}
	silent := s.VMI.Status.Reason == "NodeUnresponsive"
	unready := s.Agent != nil && !podstate.Ready(s.Agent)
	if !silent && !unready {
		return nil
	}
	f := Finding{
		What: fmt.Sprintf("The agent of node %s does not respond: the guest's status may be outdated. The guest is not affected.", name),
		Do:   "Check why virt-handler does not run there:",
		Commands: []string{
			fmt.Sprintf("kubectl --namespace %s get pods --selector kubevirt.io=virt-handler --field-selector spec.nodeName=%s",
				s.installNamespace(), name),
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

// lost returns the finding about a node that is not ready. Its guest may still run; only an administrator can rule that
// out.
func (s *Snapshot) lost(ready corev1.NodeCondition) Finding {
	name := s.VMI.Status.NodeName
	f := Finding{
		What: fmt.Sprintf("Node %s has not been ready for %s, and its guest may still run there.", name,
			age(s.Now, ready.LastTransitionTime.Time)),
		Why: []string{short(ready.Message)},
	}
	if nodeloss.OutOfService(s.Node) {
		f.What = fmt.Sprintf("Node %s is out of service: the guest counts as finished as soon as its launcher Pod is deleted.", name)
		f.Do, f.Commands = "Nothing: the Pod is deleted automatically. When the node is repaired:",
			[]string{nodeloss.UntaintCommand(name)}
		return f
	}
	f.Why = append(f.Why, "Until that is ruled out, the VM is not started on another node: two guests would corrupt its disks.")
	f.Do = "Repair the node. Take it out of service only if it is powered off:"
	f.Commands = []string{"kubectl describe node " + name, nodeloss.TaintCommand(name)}
	return f
}

func (s *Snapshot) installNamespace() string {
	if s.Install.Namespace == "" {
		return "kubevirt"
	}
	return s.Install.Namespace
}

// running reports that the guest runs, and how to connect to it.
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
		Do:   "Connect to it:",
		Commands: []string{
			fmt.Sprintf("%s console %s --namespace %s", s.Program, s.Name, s.Namespace),
			fmt.Sprintf("%s vnc %s --namespace %s --web", s.Program, s.Name, s.Namespace),
			fmt.Sprintf("%s ssh USER@vmi/%s/%s", s.Program, s.Name, s.Namespace),
		},
	}
	if len(node(s)) > 0 {
		f.Good, f.What = false, fmt.Sprintf("When node %s last responded, the guest ran there%s.",
			s.VMI.Status.NodeName, s.duration())
		f.Do, f.Commands = "", nil
	}
	if addresses := s.addresses(); len(addresses) > 0 {
		f.Why = append(f.Why, "Its addresses: "+strings.Join(addresses, ", "))
	}
	if os := s.VMI.Status.GuestOSInfo.PrettyName; os != "" {
		f.Why = append(f.Why, "Its operating system: "+short(os))
	}
	if s.condition(v1.VirtualMachineInstanceAgentConnected).Status != corev1.ConditionTrue {
		f.Why = append(f.Why, "The guest agent does not respond: users, file systems and operating system are not known (install qemu-guest-agent in the guest).")
	}
	found := []Finding{f}
	if ready := s.condition(v1.VirtualMachineInstanceReady); ready.Status == corev1.ConditionFalse && len(node(s)) == 0 {
		found = append(found, Finding{What: "It is not ready: " + sentence(ready.Reason),
			Why: []string{short(ready.Message)},
			Do:  "If it has a readinessProbe, check whether the guest responds to it."})
	}
	return append(found, restartRequired(s)...)
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

// restartRequired reports changes of the template that the running guest does not have. The table of changes says why,
// as far as the condition names the fields.
func restartRequired(s *Snapshot) []Finding {
	restart := s.vmCondition(v1.VirtualMachineRestartRequired)
	if restart.Status != corev1.ConditionTrue {
		return nil
	}
	f := Finding{
		What: "The VM was changed, and the guest still runs with its former configuration.",
		Why:  []string{short(restart.Message)},
		Do:   "Restart it, or take the change back:", Commands: []string{fmt.Sprintf("%s restart %s --namespace %s",
			s.Program, s.Name, s.Namespace)},
	}
	explained := map[string]bool{}
	for _, field := range liveupdate.FieldsIn(restart.Message) {
		entry := liveupdate.EntryOf(field)
		if entry == nil || explained[entry.Path] {
			continue
		}
		explained[entry.Path] = true
		switch {
		case entry.Effect == liveupdate.Live:
			f.Why = append(f.Why, short(fmt.Sprintf("%s changes while the guest runs only if %s.", field, entry.Condition())))
		case entry.Effect == liveupdate.Migration:
			f.Why = append(f.Why, short(fmt.Sprintf("%s changes by a migration only if %s.", field, entry.Condition())))
		case entry.Note != "":
			f.Why = append(f.Why, short(fmt.Sprintf("%s changes at a start only. %s", field, entry.Note)))
		}
	}
	return []Finding{f}
}

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

// rewired reports interfaces that the guest is yet to get or to lose. That it needs a restart is reported by
// restartRequired.
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
		f.Do = "Request a larger quota, or change the VM back:"
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
