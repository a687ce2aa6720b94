// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

const migrationUID = "0f0b4d0e-52a4-4f5c-8d2a-6c9f1a2b3c4d"

func buildTarget(t *testing.T, vmi *v1.VirtualMachineInstance, target podspec.Target) *corev1.Pod {
	t.Helper()
	target.Name, target.UID = "go", migrationUID
	pod, err := podspec.BuildTarget(vmi, config(), target)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// A target's Pod is the launcher Pod but for what is listed here.
func TestTargetDiffersFromTheLauncherPodInWhatAMigrationNeeds(t *testing.T) {
	vmi := makeVMI().Label(v1.MigrationTargetNodeNameLabel, "node-9").Obj()
	vmi.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	want, err := podspec.Build(vmi, config())
	if err != nil {
		t.Fatal(err)
	}
	if _, copied := want.Labels[v1.MigrationTargetNodeNameLabel]; copied {
		t.Error("the VMI's bookkeeping was copied to the Pod")
	}
	got := buildTarget(t, vmi, podspec.Target{
		AddedNodeSelector: map[string]string{"disk": "tape", "rack": "7"},
		CPU:               map[string]string{"cpu-model-migration.node.kubevirt.io/Skylake": "true"},
		SELinuxLevel:      "s0:c1,c2",
	})

	if got.Name == want.Name || got.Name != podspec.TargetPodName(vmi, migrationUID) || got.Name == podspec.TargetPodName(vmi, "another") {
		t.Errorf("name %q does not tell migrations apart", got.Name)
	}
	want.Name = got.Name
	want.Labels[v1.MigrationJobLabel] = migrationUID
	want.Annotations[v1.MigrationJobNameAnnotation] = "go"
	want.Spec.NodeSelector["rack"] = "7"
	want.Spec.NodeSelector["cpu-model-migration.node.kubevirt.io/Skylake"] = "true"
	want.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0:c1,c2"}
	anti := got.Spec.Affinity.PodAntiAffinity
	if len(anti.RequiredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Fatalf("anti-affinity %v", anti)
	}
	rule := anti.RequiredDuringSchedulingIgnoredDuringExecution[0]
	if rule.TopologyKey != corev1.LabelHostname || rule.LabelSelector.MatchLabels[v1.CreatedByLabel] != uid {
		t.Errorf("the Pod may share a node with the guest: %v", rule)
	}
	if want.Spec.Affinity == nil {
		want.Spec.Affinity = &corev1.Affinity{}
	}
	want.Spec.Affinity.PodAntiAffinity = anti
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Which node gives it what it asks for is the agent's to say; the scheduler finds it everywhere.
func TestTargetOfAPostCopyAsksForTheRightToHandleFaults(t *testing.T) {
	const device = "devices.kubevirt.io/userfaultfd"
	for _, postCopy := range []bool{false, true} {
		got := buildTarget(t, makeVMI().Obj(), podspec.Target{PostCopy: postCopy}).Spec.Containers[0].Resources
		request, limit := got.Requests[device], got.Limits[device]
		if (request.Value() == 1) != postCopy || (limit.Value() == 1) != postCopy {
			t.Errorf("post-copy %t: %v", postCopy, got)
		}
	}
}

func TestTargetKeepsTheUsersAntiAffinity(t *testing.T) {
	vmi := makeVMI().Obj()
	own := corev1.PodAffinityTerm{TopologyKey: "zone"}
	vmi.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{own},
	}}
	rules := buildTarget(t, vmi, podspec.Target{}).Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(rules) != 2 || rules[0].TopologyKey != "zone" {
		t.Errorf("got %v", rules)
	}
	if len(vmi.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Error("the VMI was changed")
	}
}

// The kubelet must not kill a Pod because its guest has not come yet.
func TestTargetIsNotAskedForLifeBeforeItsGuestHasCome(t *testing.T) {
	vmi := makeVMI().Obj()
	vmi.Spec.LivenessProbe = &v1.Probe{Handler: v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(22)}}, FailureThreshold: 3}
	compute := buildTarget(t, vmi, podspec.Target{}).Spec.Containers[0]
	if compute.LivenessProbe == nil || compute.LivenessProbe.FailureThreshold != 3 {
		t.Fatalf("liveness probe %v", compute.LivenessProbe)
	}
	if compute.StartupProbe == nil || compute.StartupProbe.FailureThreshold != math.MaxInt32 ||
		!cmp.Equal(compute.StartupProbe.ProbeHandler, compute.LivenessProbe.ProbeHandler) {
		t.Errorf("startup probe %v", compute.StartupProbe)
	}
}

func TestOwnPodFollowsTheOwner(t *testing.T) {
	vmi := makeVMI().Obj()
	first := podspec.PodName(vmi)
	check := func(own, other string) {
		t.Helper()
		if podspec.OwnPodName(vmi) != own || podspec.OtherPodName(vmi) != other {
			t.Errorf("own %q, other %q", podspec.OwnPodName(vmi), podspec.OtherPodName(vmi))
		}
	}
	vmi.Status.NodeName = "a"
	check(first, "")
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourceNode: "a", SourcePod: first, TargetNode: "b", TargetPod: "second"}
	check(first, "second")
	vmi.Status.NodeName = "b"
	check("second", first)
	// Back again.
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourceNode: "b", SourcePod: "second", TargetNode: "a", TargetPod: "third"}
	check("second", "third")
	vmi.Status.NodeName = "a"
	check("third", "second")
}
