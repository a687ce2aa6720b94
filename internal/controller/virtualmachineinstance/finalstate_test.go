// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/test/builder"
)

func TestEndOf(t *testing.T) {
	for name, tc := range map[string]struct {
		status *builder.PodStatus
		// want has a part of the message.
		want finalState
	}{
		"an outcome": {
			builder.MakePodStatus().Terminated(0, "Completed", `{"reason":"GracePeriodExpired","message":"destroyed"}`+"\n"),
			finalState{v1.Succeeded, "GracePeriodExpired", "destroyed"},
		},
		"the exit code decides, whatever the message says": {
			builder.MakePodStatus().Terminated(1, "Error", `{"reason":"GuestShutdown","message":"fine"}`),
			finalState{v1.Failed, "GuestShutdown", "fine"},
		},
		"no message": {builder.MakePodStatus().Terminated(137, "OOMKilled", ""),
			finalState{v1.Failed, "OOMKilled", "137 (signal 9)"}},
		"no reason either": {builder.MakePodStatus().Terminated(2, "", " \n"),
			finalState{v1.Failed, "Error", "exit code 2"}},
		"a Pod without any reason": {builder.MakePodStatus().Refused("", ""), finalState{v1.Failed, "Error", "Failed"}},
		"an unknown reason": {builder.MakePodStatus().Terminated(0, "Completed", `{"reason":"X"}`),
			finalState{v1.Succeeded, "Completed", `exit code 0: {"reason":"X"}`}},
		"the end of its log": {builder.MakePodStatus().Terminated(2, "Error", "Error: unknown flag: --x\n"),
			finalState{v1.Failed, "Error", "exit code 2: Error: unknown flag: --x"}},
		"an endless message": {
			builder.MakePodStatus().Terminated(1, "Error", strings.Repeat("x", 1<<20)+strings.Repeat("y", maxMessageLength)),
			finalState{v1.Failed, "Error", "exit code 1: " + strings.Repeat("y", maxMessageLength)},
		},
		"control characters": {
			builder.MakePodStatus().Terminated(1, "Error", "a\x1b[2Jb\nc"),
			finalState{v1.Failed, "Error", "exit code 1: a [2Jb c"},
		},
		"an eviction": {builder.MakePodStatus().Evicted("full"), finalState{v1.Failed, "Evicted", "full"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: tc.status.Obj()}
			if !podstate.Finished(pod) {
				t.Error("the Pod is not finished")
			}
			got := finalStateOf(pod)
			if got.phase != tc.want.phase || got.reason != tc.want.reason || !strings.Contains(got.message, tc.want.message) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestLivenessProbeEndsTheGuest(t *testing.T) {
	const stopped = `{"reason":"GuestShutdown","message":"the guest powered off","stopped":true}`
	probed := func(vmi *v1.VirtualMachineInstance) { vmi.Spec.LivenessProbe = &v1.Probe{} }
	for name, tc := range map[string]struct {
		vmi     func(*v1.VirtualMachineInstance)
		pod     func(*corev1.Pod)
		outcome string
		want    v1.VirtualMachineInstancePhase
	}{
		"stopped by the kubelet": {probed, nil, stopped, v1.Failed},
		"its own shutdown":       {probed, nil, `{"reason":"GuestShutdown","message":"the guest powered off"}`, v1.Succeeded},
		"no probe":               {func(*v1.VirtualMachineInstance) {}, nil, stopped, v1.Succeeded},
		"a deleted Pod":          {probed, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, stopped, v1.Succeeded},
		"a deleted VMI": {func(vmi *v1.VirtualMachineInstance) { probed(vmi); vmi.DeletionTimestamp = &metav1.Time{} }, nil,
			stopped, v1.Succeeded},
		"a node that shuts down": {probed, func(p *corev1.Pod) { p.Status.Reason = "Terminated" }, stopped, v1.Succeeded},
		"not from a launcher":    {probed, nil, `{"reason":"X","stopped":true}`, v1.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scope{observed: observed{vmi: &v1.VirtualMachineInstance{},
				pod: &corev1.Pod{Status: builder.MakePodStatus().Terminated(0, "Completed", tc.outcome).Obj()}}}
			s.vmi.Status.Phase = v1.Running
			tc.vmi(s.vmi)
			if tc.pod != nil {
				tc.pod(s.pod)
			}
			if err := s.decideFinalState(context.Background()); err != nil || s.final == nil {
				t.Fatalf("no end, %v", err)
			}
			if s.final.phase != tc.want || (s.final.phase == v1.Failed) != strings.Contains(s.final.message, "livenessProbe") {
				t.Errorf("got %+v, want %s", s.final, tc.want)
			}
		})
	}
}

func TestEndByDisruption(t *testing.T) {
	disrupted := func(reason, message string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason,
			Message: message}
	}
	for name, tc := range map[string]struct {
		condition corev1.PodCondition
		deleted   bool
		outcome   string
		want      v1.VirtualMachineInstancePhase
		// message is what follows the launcher's.
		message string
	}{
		"a drain": {disrupted("EvictionByEvictionAPI", ""), false, "The guest shut down.", v1.Failed,
			" The launcher Pod was evicted from node n1, as a drain does."},
		"a drain that killed the guest": {disrupted("EvictionByEvictionAPI", ""), false, "destroyed after 20s", v1.Failed,
			". The launcher Pod was evicted from node n1, as a drain does."},
		"a drain of a VM that is stopped": {disrupted("EvictionByEvictionAPI", ""), true, "The guest shut down.", v1.Succeeded,
			" The launcher Pod was evicted from node n1, as a drain does."},
		"the scheduler": {disrupted("PreemptionByScheduler", "vireo-scheduler: preempting\nto accommodate"), false, "The guest shut down.", v1.Failed,
			" The launcher Pod was removed from node n1: vireo-scheduler: preempting to accommodate (PreemptionByScheduler)."},
		"a taint": {disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), false, "The guest shut down.", v1.Failed,
			" The launcher Pod was removed from node n1: Taint manager: deleting due to NoExecute taint (DeletionByTaintManager)."},
		"the kubelet": {disrupted("TerminationByKubelet", "The node was low on resource: memory"), false, "The guest shut down.", v1.Failed,
			" The launcher Pod was removed from node n1: The node was low on resource: memory (TerminationByKubelet)."},
		"a disruption that is over": {corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: "EvictionByEvictionAPI"},
			false, "The guest shut down.", v1.Succeeded, ""},
		"no disruption": {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, false, "The guest shut down.", v1.Succeeded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scope{observed: observed{vmi: &v1.VirtualMachineInstance{}, pod: &corev1.Pod{
				Spec:   corev1.PodSpec{NodeName: "n1"},
				Status: builder.MakePodStatus().Terminated(0, "Completed", `{"reason":"GuestShutdown","message":"`+tc.outcome+`"}`).Obj(),
			}}}
			s.vmi.Status.Phase = v1.Running
			if tc.deleted {
				s.vmi.DeletionTimestamp = &metav1.Time{}
			}
			s.pod.Status.Conditions = []corev1.PodCondition{tc.condition}
			if err := s.decideFinalState(context.Background()); err != nil || s.final == nil {
				t.Fatalf("no end, %v", err)
			}
			if want := (finalState{tc.want, launcherpod.OutcomeShutdown, tc.outcome + tc.message}); *s.final != want {
				t.Errorf("got %+v, want %+v", s.final, want)
			}
		})
	}
}

func TestPodProblem(t *testing.T) {
	for name, tc := range map[string]struct {
		status *builder.PodStatus
		want   string
	}{
		"nothing yet":    {builder.MakePodStatus(), ""},
		"starting":       {builder.MakePodStatus().Waiting("ContainerCreating", ""), ""},
		"initializing":   {builder.MakePodStatus().Waiting("PodInitializing", ""), ""},
		"no image":       {builder.MakePodStatus().Waiting("ErrImageNeverPull", "not present"), "ErrImageNeverPull"},
		"a wrong Secret": {builder.MakePodStatus().Waiting("CreateContainerConfigError", "x"), "CreateContainerConfigError"},
		"no node":        {builder.MakePodStatus().Unschedulable("full").Waiting("ErrImagePull", ""), "Unschedulable"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if problem := podProblem(&corev1.Pod{Status: tc.status.Obj()}); problem != nil {
				got = problem.reason
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
