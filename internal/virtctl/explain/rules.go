// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// rule looks for one kind of thing.
type rule func(*Snapshot) []Finding

// rules are in the order of what they find: what keeps the whole cluster from running VMs comes before what keeps this one.
var rules = []rule{absent, install, going, stopped, crashLoop, refused, claims, schedule, images, podTrouble, node, ended, paused, leaving, volumes, running}

// one is a finding alone.
func one(f Finding) []Finding { return []Finding{f} }

// absent: there is nothing of this name.
func absent(s *Snapshot) []Finding {
	if s.VM != nil || s.VMI != nil {
		return nil
	}
	return one(Finding{
		What:     fmt.Sprintf("There is no VirtualMachine or VirtualMachineInstance %q in namespace %q.", s.Name, s.Namespace),
		Do:       "Look for it in other namespaces, or make it:",
		Commands: []string{"kubectl get vm,vmi --all-namespaces", fmt.Sprintf("%s create vm --name=%s --volume-containerdisk=src:IMAGE | kubectl apply -f -", s.Program, s.Name)},
	})
}

// install: what runs VMs does not run itself.
func install(s *Snapshot) []Finding {
	if s.Hidden[AreaInstall] {
		return nil
	}
	if s.Install.KubeVirt == nil {
		return one(Finding{
			What:     "The cluster has no KubeVirt object, so nothing runs VMs in it.",
			Do:       "Create it; VMs go on by themselves:",
			Commands: []string{"kubectl apply -f config/samples/kubevirt.yaml"},
		})
	}
	var found []Finding
	for _, component := range []struct {
		name, effect string
		ready        int
	}{
		{"virt-controller", "VMs are neither started nor stopped, and what is said below may be old", s.Install.Controller},
		{"virt-api", "start, stop, console and the like do not work", s.Install.API},
	} {
		if component.ready == 0 {
			found = append(found, Finding{
				What: fmt.Sprintf("%s is not available: %s.", component.name, component.effect),
				Do:   "See why its Pods are not ready:",
				Commands: []string{
					fmt.Sprintf("kubectl --namespace %s get pods --selector kubevirt.io=%s", s.Install.Namespace, component.name),
					fmt.Sprintf("kubectl --namespace %s describe deployment %s", s.Install.Namespace, component.name),
				},
			})
		}
	}
	return found
}

// going: the VM or its instance is being deleted or stopped.
func going(s *Snapshot) []Finding {
	switch {
	case s.VM != nil && s.VM.DeletionTimestamp != nil:
		f := Finding{What: fmt.Sprintf("The VM has been on its way out for %s.", age(s.Now, s.VM.DeletionTimestamp.Time))}
		if s.VMI != nil {
			f.Why = []string{"Its instance is still there: the guest has its grace period to shut down."}
		}
		if len(s.VM.Finalizers) > 0 {
			f.Why = append(f.Why, fmt.Sprintf("It goes when these finalizers are removed: %v.", s.VM.Finalizers))
		}
		return one(f)
	case s.VMI != nil && s.VMI.DeletionTimestamp != nil:
		grace := int64(30)
		if s.VMI.Spec.TerminationGracePeriodSeconds != nil {
			grace = *s.VMI.Spec.TerminationGracePeriodSeconds
		}
		return one(Finding{
			What:     fmt.Sprintf("The guest has been shutting down for %s. It has %d seconds; then it is switched off.", age(s.Now, s.VMI.DeletionTimestamp.Time), grace),
			Do:       "Wait, or switch it off now:",
			Commands: []string{fmt.Sprintf("%s stop %s --namespace %s --force --grace-period=0", s.Program, s.Name, s.Namespace)},
		})
	}
	return nil
}

// stopped: nobody wants the VM to run.
func stopped(s *Snapshot) []Finding {
	if s.VM == nil || s.VMI != nil || s.VM.DeletionTimestamp != nil {
		return nil
	}
	start := []string{fmt.Sprintf("%s start %s --namespace %s", s.Program, s.Name, s.Namespace)}
	switch s.Strategy() {
	case v1.RunStrategyHalted:
		return one(Finding{What: "The VM is stopped, because its runStrategy is Halted.", Do: "Start it:", Commands: start})
	case v1.RunStrategyManual:
		return one(Finding{What: "The VM is stopped. Its runStrategy is Manual: it starts when somebody starts it.", Do: "Start it:", Commands: start})
	case v1.RunStrategyRerunOnFailure:
		if s.VM.Status.StartFailure != nil || len(s.VM.Status.StateChangeRequests) > 0 {
			return nil
		}
		return one(Finding{
			What: "The VM is stopped. Its runStrategy is RerunOnFailure: it starts again after a failure, and stays off when the guest shuts itself down.",
			Do:   "Start it:", Commands: start,
		})
	case v1.RunStrategyWaitAsReceiver:
		return one(Finding{What: "The VM waits for a guest that migrates here: its runStrategy is WaitAsReceiver."})
	}
	return nil
}

// crashLoop: the VM failed before its guest ran, again and again.
func crashLoop(s *Snapshot) []Finding {
	if s.VM == nil || s.VM.Status.StartFailure == nil || s.VM.Status.StartFailure.ConsecutiveFailCount == 0 {
		return nil
	}
	failure := s.VM.Status.StartFailure
	f := Finding{What: fmt.Sprintf("The VM failed to start %d times in a row.", failure.ConsecutiveFailCount), Why: lastWords(s)}
	if retry := failure.RetryAfterTimestamp; retry != nil && retry.After(s.Now) {
		f.Why = append(f.Why, fmt.Sprintf("The next try is in %s, at %s.", retry.Sub(s.Now).Round(time.Second), retry.UTC().Format("15:04:05 MST")))
	}
	f.Do = "Mend what the messages name, and do not wait for the next try:"
	f.Commands = []string{
		fmt.Sprintf("kubectl --namespace %s logs --selector vmi.kubevirt.io/id=%s --container compute --tail=50", s.Namespace, s.Name),
		fmt.Sprintf("%s start %s --namespace %s", s.Program, s.Name, s.Namespace),
	}
	return one(f)
}

// lastWords are what a launcher Pod and an instance said when they ended.
func lastWords(s *Snapshot) []string {
	var words []string
	for i := range s.Pods {
		for _, status := range s.Pods[i].Status.ContainerStatuses {
			if ended := status.State.Terminated; status.Name == "compute" && ended != nil {
				words = append(words, fmt.Sprintf("The launcher ended with exit code %d: %s", ended.ExitCode, outcome(ended.Message, ended.Reason)))
			}
		}
		if len(words) > 0 {
			return words
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

// paused: the guest's CPUs stand still.
func paused(s *Snapshot) []Finding {
	c := s.condition(v1.VirtualMachineInstancePaused)
	if c.Status != corev1.ConditionTrue {
		return nil
	}
	unpause := []string{fmt.Sprintf("%s unpause vm %s --namespace %s", s.Program, s.Name, s.Namespace)}
	if c.Reason == v1.PausedIOErrorReason {
		return one(Finding{
			What: "The guest stands still, because its storage failed: " + short(c.Message) + ".",
			Do:   "Free space, or mend the storage. Then let it go on:", Commands: unpause,
		})
	}
	return one(Finding{What: "The guest stands still: it was paused.", Do: "Let it go on:", Commands: unpause})
}

// ended: the instance is over.
func ended(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsFinal() {
		return nil
	}
	if s.VM != nil && s.VM.Status.StartFailure != nil {
		return nil // crashLoop told it.
	}
	f := Finding{Why: lastWords(s)}
	if s.VMI.Status.Phase == v1.Succeeded {
		f.What = "The guest shut itself down."
	} else {
		f.What = "The guest ended with a failure."
		if s.VMI.Status.Reason != "" {
			f.What = fmt.Sprintf("The guest ended with a failure: %s.", s.VMI.Status.Reason)
		}
	}
	switch s.Strategy() {
	case v1.RunStrategyOnce:
		f.Do = "Its runStrategy is Once: it does not run again. Give it another one, or make the VM anew."
	case v1.RunStrategyManual:
		f.Do, f.Commands = "Its runStrategy is Manual. Start it again:", []string{fmt.Sprintf("%s start %s --namespace %s", s.Program, s.Name, s.Namespace)}
	case "":
		f.Do, f.Commands = "An instance runs once. Delete it and make it anew, or use a VirtualMachine:", []string{fmt.Sprintf("kubectl --namespace %s delete vmi %s", s.Namespace, s.Name)}
	default:
		f.Do = "Nothing: another instance follows by itself."
	}
	return one(f)
}

// unexplained is said of a VM of which no rule knows anything.
func unexplained(s *Snapshot) Finding {
	f := Finding{What: "The VM is on its way, and nothing says that anything is wrong."}
	if s.VMI != nil {
		f.What = fmt.Sprintf("The instance is %s, and nothing says that anything is wrong.", s.VMI.Status.Phase)
		f.Why = append(f.Why, fmt.Sprintf("It is %s old.", age(s.Now, s.VMI.CreationTimestamp.Time)))
	} else {
		f.Why = append(f.Why, "virt-controller has not made its instance yet.")
	}
	f.Do, f.Commands = "Wait, or look at everything:", []string{
		fmt.Sprintf("kubectl --namespace %s describe vm,vmi %s", s.Namespace, s.Name),
		fmt.Sprintf("kubectl --namespace %s describe pods --selector vmi.kubevirt.io/id=%s", s.Namespace, s.Name),
	}
	return f
}
