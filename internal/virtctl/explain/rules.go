// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// rule is a function that returns findings about a snapshot, if there are any.
type rule func(*Snapshot) []Finding

// rules are all rules in the order of the report. Problems of the whole cluster come first.
var rules = []rule{
	notFound, install, deletion, stopped, crashLoop, failedSync, claims, scheduling, images, podStart, node,
	finished, paused, evacuation,
	volumeMigration, resizing, running,
}

// one returns a list with one finding.
func one(f Finding) []Finding { return []Finding{f} }

// notFound reports that there is no VM or instance of this name.
func notFound(s *Snapshot) []Finding {
	if s.VM != nil || s.VMI != nil {
		return nil
	}
	return one(Finding{
		What: fmt.Sprintf("There is no VirtualMachine or VirtualMachineInstance %q in namespace %q.",
			s.Name, s.Namespace),
		Do: "Search other namespaces, or create it:",
		Commands: []string{"kubectl get vm,vmi --all-namespaces",
			fmt.Sprintf("%s create vm --name=%s --volume-containerdisk=src:IMAGE | kubectl apply -f -",
				s.Program, s.Name)},
	})
}

// install reports that components are missing or not ready.
func install(s *Snapshot) []Finding {
	if s.Hidden[AreaInstall] {
		return nil
	}
	if s.Install.KubeVirt == nil {
		return one(Finding{
			What:     "The cluster has no KubeVirt object, so VMs cannot run.",
			Do:       "Create it; VMs then start automatically:",
			Commands: []string{"kubectl apply -f config/samples/kubevirt.yaml"},
		})
	}
	var found []Finding
	for _, component := range []struct {
		name, effect string
		ready        int
	}{
		{"virt-controller", "VMs are neither started nor stopped, and the findings below may be outdated",
			s.Install.Controller},
		{"virt-api", "start, stop, console and other commands do not work", s.Install.API},
	} {
		if component.ready == 0 {
			found = append(found, Finding{
				What: fmt.Sprintf("%s is not available: %s.", component.name, component.effect),
				Do:   "Check why its Pods are not ready:",
				Commands: []string{
					fmt.Sprintf("kubectl --namespace %s get pods --selector kubevirt.io=%s", s.Install.Namespace, component.name),
					fmt.Sprintf("kubectl --namespace %s describe deployment %s", s.Install.Namespace, component.name),
				},
			})
		}
	}
	return found
}

// deletion reports that the VM or its instance is being deleted.
func deletion(s *Snapshot) []Finding {
	switch {
	case s.VM != nil && s.VM.DeletionTimestamp != nil:
		f := Finding{What: fmt.Sprintf("The VM was deleted %s ago.", age(s.Now, s.VM.DeletionTimestamp.Time))}
		if s.VMI != nil {
			f.Why = []string{"Its instance still exists: the guest has its grace period to shut down."}
		}
		if len(s.VM.Finalizers) > 0 {
			f.Why = append(f.Why, fmt.Sprintf("It remains until these finalizers are removed: %v.", s.VM.Finalizers))
		}
		return one(f)
	case s.VMI != nil && s.VMI.DeletionTimestamp != nil:
		grace := int64(30)
		if s.VMI.Spec.TerminationGracePeriodSeconds != nil {
			grace = *s.VMI.Spec.TerminationGracePeriodSeconds
		}
		return one(Finding{
			What: fmt.Sprintf("The guest has been shutting down for %s. After %d seconds it is powered off.",
				age(s.Now, s.VMI.DeletionTimestamp.Time), grace),
			Do: "Wait, or power it off now:",
			Commands: []string{fmt.Sprintf("%s stop %s --namespace %s --force --grace-period=0",
				s.Program, s.Name, s.Namespace)},
		})
	}
	return nil
}

// stopped reports that the VM is not meant to run.
func stopped(s *Snapshot) []Finding {
	if s.VM == nil || s.VMI != nil || s.VM.DeletionTimestamp != nil {
		return nil
	}
	start := []string{fmt.Sprintf("%s start %s --namespace %s", s.Program, s.Name, s.Namespace)}
	switch s.Strategy() {
	case v1.RunStrategyHalted:
		return one(Finding{What: "The VM is stopped, because its runStrategy is Halted.", Do: "Start it:", Commands: start})
	case v1.RunStrategyManual:
		return one(Finding{What: "The VM is stopped. Its runStrategy is Manual: it runs only after it is started.",
			Do: "Start it:", Commands: start})
	case v1.RunStrategyRerunOnFailure:
		if s.VM.Status.StartFailure != nil || len(s.VM.Status.StateChangeRequests) > 0 {
			return nil
		}
		return one(Finding{
			What: "The VM is stopped. Its runStrategy is RerunOnFailure: it is restarted after a failure, and stays stopped when the guest shuts itself down.",
			Do:   "Start it:", Commands: start,
		})
	case v1.RunStrategyWaitAsReceiver:
		return one(Finding{What: "The VM waits for a guest to migrate to it: its runStrategy is WaitAsReceiver."})
	}
	return nil
}

// crashLoop reports that the VM failed repeatedly before its guest ran.
func crashLoop(s *Snapshot) []Finding {
	if s.VM == nil || s.VM.Status.StartFailure == nil || s.VM.Status.StartFailure.ConsecutiveFailCount == 0 {
		return nil
	}
	failure := s.VM.Status.StartFailure
	f := Finding{What: fmt.Sprintf("The VM failed to start %d times in a row.", failure.ConsecutiveFailCount),
		Why: failureMessages(s)}
	if retry := failure.RetryAfterTimestamp; retry != nil && retry.After(s.Now) {
		f.Why = append(f.Why, fmt.Sprintf("The next attempt is in %s, at %s.", retry.Sub(s.Now).Round(time.Second),
			retry.UTC().Format("15:04:05 MST")))
	}
	f.Do = "Fix what the messages name, and start it without waiting for the next attempt:"
	f.Commands = []string{
		fmt.Sprintf("kubectl --namespace %s logs --selector vmi.kubevirt.io/id=%s --container compute --tail=50",
			s.Namespace, s.Name),
		fmt.Sprintf("%s start %s --namespace %s", s.Program, s.Name, s.Namespace),
	}
	return one(f)
}

// failureMessages returns the messages with which the launcher Pod or the instance ended.
func failureMessages(s *Snapshot) []string {
	var messages []string
	for i := range s.Pods {
		for _, status := range s.Pods[i].Status.ContainerStatuses {
			if ended := status.State.Terminated; status.Name == "compute" && ended != nil {
				messages = append(messages, fmt.Sprintf("The launcher exited with code %d: %s", ended.ExitCode,
					outcome(ended.Message, ended.Reason)))
			}
		}
		if len(messages) > 0 {
			return messages
		}
	}
	if ready := s.condition(v1.VirtualMachineInstanceReady); s.VMI != nil && s.VMI.IsFinal() && ready.Message != "" {
		return []string{short(ready.Message)}
	}
	if e := s.eventOf("VirtualMachineInstance", s.Name); e != nil {
		return []string{fmt.Sprintf("%s: %s", e.Reason, short(e.Message))}
	}
	return nil
}

// paused reports that the guest is paused.
func paused(s *Snapshot) []Finding {
	c := s.condition(v1.VirtualMachineInstancePaused)
	if c.Status != corev1.ConditionTrue {
		return nil
	}
	unpause := []string{fmt.Sprintf("%s unpause vm %s --namespace %s", s.Program, s.Name, s.Namespace)}
	restart := fmt.Sprintf("%s restart %s --namespace %s", s.Program, s.Name, s.Namespace)
	switch c.Reason {
	case v1.PausedIOErrorReason:
		return one(Finding{
			What: "The guest is paused because its storage failed: " + sentence(short(c.Message)),
			Do:   "Free space, or repair the storage. Then resume it:", Commands: unpause,
		})
	case v1.PausedAPIErrorReason:
		return one(Finding{
			What: "The guest is paused because libvirt could not resume it after a migration, a dump or a snapshot.",
			Do:   "Resume it, or restart it:", Commands: append(unpause, restart),
		})
	case v1.PausedUnknownReason, v1.PausedCrashedReason, v1.PausedWatchdogReason:
		return one(Finding{
			What: "The guest has stopped by itself: " + short(c.Message) + ".", Do: "Reset it, or restart it:",
			Commands: []string{fmt.Sprintf("%s reset %s --namespace %s", s.Program, s.Name, s.Namespace), restart},
		})
	case v1.PausedPostcopyFailedReason:
		return one(Finding{What: "The guest has lost a part of its memory in a migration.", Do: "Restart it:",
			Commands: []string{restart}})
	default:
		return one(Finding{What: "The guest is paused.", Do: "Resume it:", Commands: unpause})
	}
}

// finished reports that the instance has finished.
func finished(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsFinal() {
		return nil
	}
	if s.VM != nil && s.VM.Status.StartFailure != nil {
		return nil // See crashLoop.
	}
	f := Finding{Why: failureMessages(s)}
	if s.VMI.Status.Phase == v1.Succeeded {
		f.What = "The guest shut itself down."
	} else {
		f.What = "The guest failed."
		if s.VMI.Status.Reason != "" {
			f.What = fmt.Sprintf("The guest failed: %s.", s.VMI.Status.Reason)
		}
	}
	switch s.Strategy() {
	case v1.RunStrategyOnce:
		f.Do = "Its runStrategy is Once: it does not run again. Change the runStrategy, or create the VM again."
	case v1.RunStrategyManual:
		f.Do, f.Commands = "Its runStrategy is Manual. Start it again:",
			[]string{fmt.Sprintf("%s start %s --namespace %s", s.Program, s.Name, s.Namespace)}
	case "":
		f.Do, f.Commands = "An instance runs once. Delete it and create it again, or use a VirtualMachine:",
			[]string{fmt.Sprintf("kubectl --namespace %s delete vmi %s", s.Namespace, s.Name)}
	default:
		f.Do = "Nothing: another instance is started automatically."
	}
	return one(f)
}

// unexplained returns the finding for a snapshot for which no rule has one.
func unexplained(s *Snapshot) Finding {
	f := Finding{What: "The VM is starting, and there is no sign of a problem."}
	if s.VMI != nil {
		f.What = fmt.Sprintf("The instance is %s, and there is no sign of a problem.", s.VMI.Status.Phase)
		f.Why = append(f.Why, fmt.Sprintf("It is %s old.", age(s.Now, s.VMI.CreationTimestamp.Time)))
	} else {
		f.Why = append(f.Why, "virt-controller has not created its instance yet.")
	}
	f.Do, f.Commands = "Wait, or inspect all objects:", []string{
		fmt.Sprintf("kubectl --namespace %s describe vm,vmi %s", s.Namespace, s.Name),
		fmt.Sprintf("kubectl --namespace %s describe pods --selector vmi.kubevirt.io/id=%s", s.Namespace, s.Name),
	}
	return f
}
