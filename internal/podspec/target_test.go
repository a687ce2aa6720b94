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
	"github.com/vireo-project/vireo/internal/launcherpod"
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

// The test lists all differences between the target Pod and the launcher Pod.
func TestTargetDiffersFromTheLauncherPod(t *testing.T) {
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

	if got.Name == want.Name || got.Name != podspec.TargetPodName(vmi, migrationUID) ||
		got.Name == podspec.TargetPodName(vmi, "another") {
		t.Errorf("name %q does not distinguish migrations", got.Name)
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
	if rule.TopologyKey != corev1.LabelHostname || rule.LabelSelector.MatchLabels[v1.CreatedByLabel] != uid ||
		rule.LabelSelector.MatchLabels[v1.AppLabel] != launcherpod.AppLabelValue {
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

func TestTargetOfAPostCopyRequestsUserfaultfd(t *testing.T) {
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
	rules := buildTarget(t, vmi,
		podspec.Target{}).Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(rules) != 2 || rules[0].TopologyKey != "zone" {
		t.Errorf("got %v", rules)
	}
	if len(vmi.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Error("the VMI was changed")
	}
}

// The kubelet must not kill a Pod before the migration completes. After that, the Pod must be ready at once, and its
// liveness probe count.
func TestProbesOfTargetBeginWithTheGuest(t *testing.T) {
	ssh := func(delay int32) *v1.Probe {
		return &v1.Probe{
			Handler:             v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(22)}},
			InitialDelaySeconds: delay, PeriodSeconds: 20, FailureThreshold: 3,
		}
	}
	awaits := &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{
			"/usr/bin/virt-launcher", "await-guest", "--domain", "default_vm", "--timeout-seconds", "60",
		}}},
		TimeoutSeconds: 61, PeriodSeconds: 1, FailureThreshold: math.MaxInt32,
	}
	for name, tc := range map[string]struct {
		liveness, readiness *v1.Probe
		startup             *corev1.Probe
	}{
		"none": {}, "liveness": {liveness: ssh(600), startup: awaits}, "readiness": {readiness: ssh(600), startup: awaits},
		"both": {liveness: ssh(0), readiness: ssh(0), startup: awaits},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := makeVMI().Obj()
			vmi.Spec.LivenessProbe, vmi.Spec.ReadinessProbe = tc.liveness, tc.readiness
			own, err := podspec.Build(vmi, config())
			if err != nil {
				t.Fatal(err)
			}
			want, got := own.Spec.Containers[0], buildTarget(t, vmi, podspec.Target{}).Spec.Containers[0]
			want.StartupProbe = tc.startup
			if want.ReadinessProbe != nil {
				want.ReadinessProbe.InitialDelaySeconds = 0
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
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
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourceNode: "a", SourcePod: first,
		TargetNode: "b", TargetPod: "second"}
	check(first, "second")
	vmi.Status.NodeName = "b"
	check("second", first)
	// The guest is migrated back.
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourceNode: "b", SourcePod: "second",
		TargetNode: "a", TargetPod: "third"}
	check("second", "third")
	vmi.Status.NodeName = "a"
	check("third", "second")
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestTargetGetsTheImagesOfTheSource(t *testing.T) {
	vmi := makeVMI().Obj()
	vmi.Spec.Volumes = nil
	for name, image := range map[string]string{
		"reported": "registry:5000/os:latest", "untagged": "registry:5000/tools", "pinned": "os@" + digest, "unknown": "os:1", "id": "os:2",
	} {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes,
			v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: image}}})
	}
	vmi.Spec.Domain.Firmware = &v1.Firmware{
		KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "kernel:latest", KernelPath: "/vmlinuz"}}}
	own, err := podspec.Build(vmi, config())
	if err != nil {
		t.Fatal(err)
	}
	images := func(pod *corev1.Pod) map[string]string {
		out := map[string]string{}
		for _, v := range pod.Spec.Volumes {
			if v.Image != nil {
				out[v.Name] = v.Image.Reference
			}
		}
		return out
	}
	requested := images(own)
	status := corev1.ContainerStatus{Name: "compute"}
	for name := range requested {
		reference := "other/name@" + digest
		switch requested[name] {
		case "os:1":
			continue
		case "os:2":
			reference = digest
		}
		status.VolumeMounts = append(status.VolumeMounts, corev1.VolumeMountStatus{
			Name: name, VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: reference}},
		})
	}
	own.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	want := map[string]string{}
	for name, reference := range requested {
		want[name] = map[string]string{
			"registry:5000/os:latest": "registry:5000/os@" + digest, "registry:5000/tools": "registry:5000/tools@" + digest,
			"kernel:latest": "kernel@" + digest, "os@" + digest: "os@" + digest, "os:1": "os:1", "os:2": "os:2",
		}[reference]
	}
	first := buildTarget(t, vmi, podspec.Target{Images: podspec.PinnedImages(own)})
	if diff := cmp.Diff(want, images(first)); diff != "" {
		t.Error(diff)
	}
	// The target of the next migration gets the same images, even without a status of the source Pod.
	second := buildTarget(t, vmi, podspec.Target{Images: podspec.PinnedImages(first)})
	if diff := cmp.Diff(want, images(second)); diff != "" {
		t.Error(diff)
	}
}

// A guest keeps the machine type of its start, and not every node supports every version of it.
func TestTargetHasTheMachineThatTheGuestRunsOn(t *testing.T) {
	vmi := makeVMI().Obj()
	vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"}
	const q35, version = v1.SupportedMachineTypeLabel + "q35", v1.SupportedMachineTypeLabel + "pc-q35-9.2"
	selector := buildTarget(t, vmi, podspec.Target{}).Spec.NodeSelector
	if selector[q35] != "true" {
		t.Errorf("a machine that is not known: %v", selector)
	}
	vmi.Status.Machine = &v1.Machine{Type: "pc-q35-9.2"}
	selector = buildTarget(t, vmi, podspec.Target{}).Spec.NodeSelector
	if _, requested := selector[q35]; requested || selector[version] != "true" {
		t.Errorf("got %v", selector)
	}
	emulated := config()
	emulated.UseEmulation = true
	pod, err := podspec.BuildTarget(vmi, emulated, podspec.Target{Name: "go", UID: migrationUID})
	if err != nil || pod.Spec.NodeSelector[version] != "true" {
		t.Errorf("emulated: %v, %v", pod, err)
	}
	// A guest that came from KubeVirt keeps the machine type that its QEMU has. One that started here has another one than
	// its spec.
	const redHat = "pc-q35-rhel9.2.0"
	for running, replaced := range map[string]bool{redHat: false, "pc-q35-7.2": true} {
		vmi := vmi.DeepCopy()
		vmi.Spec.Domain.Machine.Type, vmi.Status.Machine.Type = redHat, running
		selector = buildTarget(t, vmi, podspec.Target{}).Spec.NodeSelector
		_, own := selector[v1.SupportedMachineTypeLabel+redHat]
		_, started := selector[v1.SupportedMachineTypeLabel+"pc-q35-7.2"]
		if own == replaced || started != replaced {
			t.Errorf("%s runs: %v", running, selector)
		}
	}
	// Invalid label names are not in the selector.
	vmi.Status.Machine = &v1.Machine{Type: "no such/machine"}
	if selector = buildTarget(t, vmi, podspec.Target{}).Spec.NodeSelector; selector[q35] != "true" {
		t.Errorf("got %v", selector)
	}
}
