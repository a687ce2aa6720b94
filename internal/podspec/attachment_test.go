// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

func hotplugConfig() podspec.Config {
	cfg := config()
	cfg.HotplugVolumes = true
	return cfg
}

// attachment is the input for the last volume of a VMI.
func attachment(vmi *v1.VirtualMachineInstance, mode corev1.PersistentVolumeMode) podspec.Attachment {
	volume := &vmi.Spec.Volumes[len(vmi.Spec.Volumes)-1]
	return podspec.Attachment{
		Volume: volume,
		Claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: volume.WrittenClaim(), UID: "c1"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeMode: &mode},
		},
		Launcher: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: podspec.PodName(vmi), Namespace: vmi.Namespace, UID: "l1"},
			Spec:       corev1.PodSpec{NodeName: "node-1"},
		},
	}
}

func TestBuildAttachment(t *testing.T) {
	tolerates := corev1.Toleration{Key: "vms", Operator: corev1.TolerationOpExists}
	vmi := makeVMI().Label("app", "db").Hotpluggable("data", "data-claim").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Tolerations = []corev1.Toleration{tolerates}
		vmi.Spec.PriorityClassName = "high"
		vmi.Status.SelinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
	}).Obj()
	compareGolden(t, "attachment-filesystem",
		podspec.BuildAttachment(vmi, hotplugConfig(), attachment(vmi, corev1.PersistentVolumeFilesystem)))
	block := podspec.BuildAttachment(vmi, hotplugConfig(), attachment(vmi, corev1.PersistentVolumeBlock))
	compareGolden(t, "attachment-block", block)
	if !podspec.IsAttachmentOf(block, vmi) || podspec.IsOf(block, vmi) || podspec.AttachmentLauncher(block).UID != "l1" {
		t.Error("it is not recognized as an attachment Pod of the VMI")
	}
	trigger := attachment(vmi, corev1.PersistentVolumeBlock)
	trigger.Trigger = true
	compareGolden(t, "attachment-trigger", podspec.BuildAttachment(vmi, hotplugConfig(), trigger))
}

func TestAttachmentOfAReadOnlyClaim(t *testing.T) {
	vmi := makeVMI().Hotpluggable("usr", "data-claim").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	}).Obj()
	pod := podspec.BuildAttachment(vmi, hotplugConfig(), attachment(vmi, corev1.PersistentVolumeFilesystem))
	mount := pod.Spec.Containers[0].VolumeMounts[0]
	if !mount.ReadOnly || !pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly || mount.MountPath != "/path/usr" {
		t.Errorf("got %+v", mount)
	}
}

// A claim without an image gets one of the size of its disk, unless nobody wants a disk of it.
func TestAttachmentPodsCreateTheImage(t *testing.T) {
	for _, tc := range []struct {
		name     string
		readOnly bool
		change   func(*podspec.Attachment)
		want     string
	}{
		{"requested", false, func(*podspec.Attachment) {}, "--hold /data/disk.img 1073741824 4096 7"},
		{"bound to less", false, func(a *podspec.Attachment) {
			a.Claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1M")}
		}, "--hold /data/disk.img 1000000 4096 7"},
		{"of unknown size", false, func(a *podspec.Attachment) { a.Claim.Spec.Resources.Requests = nil }, "--hold"},
		{"read-only", true, func(*podspec.Attachment) {}, "--hold"},
		{"for files", false, func(a *podspec.Attachment) { a.Files = true }, "--hold"},
		{"to be bound", false, func(a *podspec.Attachment) { a.Trigger = true }, "bind-volumes"},
		{"block", false, func(a *podspec.Attachment) { *a.Claim.Spec.VolumeMode = corev1.PersistentVolumeBlock }, "--hold"},
	} {
		cfg := hotplugConfig()
		cfg.ImageReserveBytes, cfg.ImageTolerateLessPercent = 4096, 7
		vmi := makeVMI().Hotpluggable("data", "data-claim").Obj()
		vmi.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = tc.readOnly
		a := attachment(vmi, corev1.PersistentVolumeFilesystem)
		a.Claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		tc.change(&a)
		if got := strings.Join(podspec.BuildAttachment(vmi, cfg, a).Spec.Containers[0].Command[1:], " "); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestResourcesOfAttachmentPods(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for _, tc := range []struct {
		name   string
		vmi    *builder.VMI
		change func(*podspec.Config)
		item   corev1.LimitRangeItem
		want   string
	}{
		{"KubeVirt's", makeVMI(), nil, corev1.LimitRangeItem{}, "10m 2M to 100m 80M"},
		{"the cluster's", makeVMI(), func(cfg *podspec.Config) {
			cfg.HotplugResources.Requests = list("20m", "0")
		}, corev1.LimitRangeItem{}, "20m 2M to 100m 80M"},
		{"Guaranteed", makeVMI().Limit(corev1.ResourceCPU, "1").Limit(corev1.ResourceMemory, "1Gi"), nil, corev1.LimitRangeItem{}, "100m 80M to 100m 80M"},
		{"a ratio", makeVMI(), nil, corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: list("4", "3")}, "25m 26666667 to 100m 80M"},
		{"least and most", makeVMI(), nil, corev1.LimitRangeItem{Type: corev1.LimitTypePod, Min: list("50m", "100M"), Max: list("60m", "200M")},
			"50m 100M to 60m 100M"},
		{"of claims", makeVMI(), nil, corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Min: list("1", "1Gi")}, "10m 2M to 100m 80M"},
	} {
		cfg, vmi := hotplugConfig(), tc.vmi.Hotpluggable("data", "data-claim").Obj()
		if tc.change != nil {
			tc.change(&cfg)
		}
		a := attachment(vmi, corev1.PersistentVolumeBlock)
		a.Ranges = []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{tc.item}}}}
		got := podspec.BuildAttachment(vmi, cfg, a).Spec.Containers[0].Resources
		text := got.Requests.Cpu().String() + " " + got.Requests.Memory().String() + " to " + got.Limits.Cpu().String() +
			" " + got.Limits.Memory().String()
		if text != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, text, tc.want)
		}
	}
}

// The launcher Pod has no hotpluggable volume, unless hotplug is off for the cluster or the VMI.
func TestHotpluggableVolumesAreNotInTheLauncherPod(t *testing.T) {
	has := func(vmi *builder.VMI, cfg podspec.Config) bool {
		t.Helper()
		pod, err := podspec.Build(vmi.Obj(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if !podspec.HasClaim(pod, "root-claim") {
			t.Error("the launcher Pod lacks a claim that is not hotpluggable")
		}
		return podspec.HasClaim(pod, "data-claim")
	}
	vmi := func() *builder.VMI { return makeVMI().PVC("root", "root-claim").Hotpluggable("data", "data-claim") }
	if has(vmi(), hotplugConfig()) {
		t.Error("the launcher Pod has the hotpluggable volume")
	}
	if !has(vmi(), config()) {
		t.Error("without hotplug, the launcher Pod lacks the hotpluggable volume")
	}
	disabled := vmi().With(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.DisableHotplug = true })
	if !has(disabled, hotplugConfig()) {
		t.Error("the launcher Pod of a VMI that disables hotplug lacks the hotpluggable volume")
	}
}

func TestLauncherPodGoesWhereItsHotpluggableVolumesAre(t *testing.T) {
	expression := func(key, value string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
	}
	term := func(of ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: of}
	}
	zoneA, zoneB, rack, user := expression("zone", "a"), expression("zone", "b"), expression("rack", "1"),
		expression("user", "x")
	cfg := hotplugConfig()
	cfg.UseEmulation = true // Then no labels of CPUs are required.
	cfg.VolumeAffinities = []corev1.NodeSelector{
		{NodeSelectorTerms: []corev1.NodeSelectorTerm{term(zoneA), term(zoneB)}}, {NodeSelectorTerms: []corev1.NodeSelectorTerm{term(rack)}}, {},
	}
	of := func(vmi *builder.VMI) []corev1.NodeSelectorTerm {
		pod, err := podspec.Build(vmi.Obj(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if diff := cmp.Diff([]corev1.NodeSelectorTerm{term(zoneA, rack), term(zoneB, rack)}, of(makeVMI())); diff != "" {
		t.Error(diff)
	}
	choosy := makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{term(user)}},
		}}
	})
	if diff := cmp.Diff([]corev1.NodeSelectorTerm{term(user, zoneA, rack), term(user, zoneB, rack)},
		of(choosy)); diff != "" {
		t.Error(diff)
	}
	// What would become too large is left out.
	many := make([]corev1.NodeSelectorTerm, 200)
	for i := range many {
		many[i] = term(user)
	}
	cfg.VolumeAffinities = []corev1.NodeSelector{{NodeSelectorTerms: many},
		{NodeSelectorTerms: []corev1.NodeSelectorTerm{term(zoneA), term(zoneB)}}}
	if n := len(of(makeVMI())); n != 200 {
		t.Errorf("%d terms", n)
	}
	required := choosy.Obj().Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(required.NodeSelectorTerms[0].MatchExpressions) != 1 {
		t.Error("the VMI was changed")
	}
}

func TestSELinuxLevel(t *testing.T) {
	for context, want := range map[string]string{
		"system_u:object_r:container_file_t:s0:c1,c2": "s0:c1,c2", "u:r:container_file_t:s0:c1,c2,c3,c4": "s0:c1,c2,c3,c4",
		"none": "", "": "", "u:r:container_file_t": "", "u:r:container_file_t:s0": "", "u:r:container_file_t:s0:c0.c1023": "",
		"u:r:container_file_t:s0-s15:c0.c1023": "", "u:r:container_file_t:s0:c1,c2,c3,c4,c5": "",
		"u:r:container_file_t:s15:c1": "", "u:r:container_var_lib_t:s0:c1,c2": "", "u:r:container_file_t:s0:c12345": "",
	} {
		if got := podspec.SELinuxLevel(context); got != want {
			t.Errorf("%q: %q", context, got)
		}
	}
}

// The VMI has the SELinux context of the Pod in which the guest runs.
func TestLevelOfAnAttachmentPod(t *testing.T) {
	vmi := makeVMI().Hotpluggable("data", "data-claim").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.SelinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
	}).Obj()
	for name, test := range map[string]struct {
		launcher, level, want string
	}{
		"of the guest's launcher": {podspec.PodName(vmi), "", "s0:c1,c2"},
		"of a target that has it": {"target", "s0:c1,c2", "s0:c1,c2"},
		"of a guest that was migrated, whose agent has not reported yet": {podspec.PodName(vmi), "s0:c3,c4", "s0:c3,c4"},
		"of a target for which the runtime chooses":                      {"target", "", ""},
	} {
		a := attachment(vmi, corev1.PersistentVolumeBlock)
		a.Launcher.Name = test.launcher
		if test.level != "" {
			a.Launcher.Spec.SecurityContext = &corev1.PodSecurityContext{
				SELinuxOptions: &corev1.SELinuxOptions{Level: test.level}}
		}
		options := podspec.BuildAttachment(vmi, hotplugConfig(), a).Spec.SecurityContext.SELinuxOptions
		if got := ptr.Deref(options, corev1.SELinuxOptions{}).Level; got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// virt-broker derives the name as well, and may be of another version.
func TestAttachmentName(t *testing.T) {
	if got := podspec.AttachmentName("uid-1", "data"); got != "hp-volume-data-eluils6j" {
		t.Error(got)
	}
}

// The binder Pod has the launcher Pod's scheduling constraints and claims, and nothing else of it.
func TestBuildBinder(t *testing.T) {
	cfg := config()
	cfg.Claims = map[string]podspec.Claim{"block": {Block: true}}
	vmi := makeVMI().Label("app", "db").PVC("root", "root-claim").PVC("block", "block-claim").Masquerade().
		ContainerDisk("tools", "registry.example/tools:1").CloudInitSecret("init", "secret", "").Obj()
	pod, err := podspec.BuildBinder(vmi, cfg)
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "binder", pod)
	if pod.Name == podspec.PodName(vmi) {
		t.Errorf("it has the launcher Pod's name %s", pod.Name)
	}
}
