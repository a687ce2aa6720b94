// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func hotplugged(phase v1.VolumePhase, changes ...func(*v1.VolumeStatus)) *v1.VolumeStatus {
	volume := &v1.VolumeStatus{
		Name: "v", Phase: phase, HotplugVolume: &v1.HotplugVolumeStatus{},
		PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "c"},
	}
	for _, change := range changes {
		change(volume)
	}
	return volume
}

func TestWritersOfHotpluggedVolumes(t *testing.T) {
	target := func(v *v1.VolumeStatus) { v.Target = "sda" }
	ready := func(v *v1.VolumeStatus) { v.HotplugVolume.AttachPodUID = "u" }
	message := func(v *v1.VolumeStatus) { v.Message = "m" }
	for _, tc := range []struct {
		name          string
		writer        Writer
		before, after *v1.VolumeStatus
		changed       []string
		refused       string
	}{
		{
			"the controller adds a volume", Controller, nil, hotplugged(v1.VolumePending),
			[]string{"volumeStatus", "volumeStatus.persistentVolumeClaimInfo", "volumeStatus.hotplugVolume",
				"volumeStatus.phase"}, "",
		},
		{"the agent must not add one", Handler, nil, hotplugged(""), nil, "status.volumeStatus belongs to virt-controller"},
		{
			"the agent must not remove one", Handler, hotplugged(v1.HotplugVolumeUnMounted), nil, nil,
			"status.volumeStatus belongs to virt-controller",
		},
		{
			"the controller removes one", Controller, hotplugged(v1.HotplugVolumeDetaching), nil,
			[]string{"volumeStatus", "volumeStatus.persistentVolumeClaimInfo", "volumeStatus.hotplugVolume"}, "",
		},
		{
			"the controller creates the Pod", Controller, hotplugged(v1.VolumeBound), hotplugged(v1.HotplugVolumeAttachedToNode),
			[]string{"volumeStatus.phase"}, "",
		},
		{
			"the Pod gets ready", Controller, hotplugged(v1.HotplugVolumeAttachedToNode),
			hotplugged(v1.HotplugVolumeAttachedToNode, ready), []string{"volumeStatus.hotplugVolume"}, "",
		},
		{
			"the Pod of an attached volume is replaced", Controller, hotplugged(v1.VolumeReady, ready),
			hotplugged(v1.VolumeReady), []string{"volumeStatus.hotplugVolume"}, "",
		},
		{
			"the agent must not name the Pod", Handler, hotplugged(v1.HotplugVolumeAttachedToNode),
			hotplugged(v1.HotplugVolumeAttachedToNode, ready), nil, "status.volumeStatus.hotplugVolume",
		},
		{
			"the agent mounts", Handler, hotplugged(v1.HotplugVolumeAttachedToNode), hotplugged(v1.HotplugVolumeMounted),
			[]string{"volumeStatus.phase"}, "",
		},
		{
			"the agent mounts and attaches", Handler, hotplugged(v1.HotplugVolumeAttachedToNode),
			hotplugged(v1.VolumeReady, target), []string{"volumeStatus", "volumeStatus.phase"}, "",
		},
		{
			"the agent reports a failure", Handler, hotplugged(v1.HotplugVolumeMounted),
			hotplugged(v1.HotplugVolumeMounted, message), []string{"volumeStatus.phase"}, "",
		},
		{
			"the agent reports that it cannot mount", Handler, hotplugged(v1.HotplugVolumeAttachedToNode, ready),
			hotplugged(v1.HotplugVolumeAttachedToNode, ready, message), []string{"volumeStatus.phase"}, "",
		},
		{
			"the agent must not report about the attachment Pod", Handler, hotplugged(v1.HotplugVolumeAttachedToNode),
			hotplugged(v1.HotplugVolumeAttachedToNode, message), nil,
			"status.volumeStatus.phase AttachedToNode belongs to virt-controller",
		},
		{
			"the controller must not report about a volume that the agent mounts", Controller,
			hotplugged(v1.HotplugVolumeAttachedToNode, ready),
			hotplugged(v1.HotplugVolumeAttachedToNode, ready, message), nil,
			"status.volumeStatus.phase AttachedToNode belongs to virt-handler",
		},
		{
			"the controller reports another attachment Pod", Controller,
			hotplugged(v1.HotplugVolumeAttachedToNode, ready, message),
			hotplugged(v1.HotplugVolumeAttachedToNode), []string{"volumeStatus.hotplugVolume", "volumeStatus.phase"}, "",
		},
		{
			"the controller must not report one of the agent's", Controller, hotplugged(v1.HotplugVolumeMounted),
			hotplugged(v1.HotplugVolumeMounted, message), nil, "status.volumeStatus.phase MountedToPod belongs to virt-handler",
		},
		{
			"the agent must not attach what is not on the node", Handler, hotplugged(v1.VolumeBound), hotplugged(v1.VolumeReady),
			nil, `cannot change from "Bound" to "Ready"`,
		},
		{
			"the controller must not attach", Controller, hotplugged(v1.HotplugVolumeAttachedToNode), hotplugged(v1.VolumeReady),
			nil, "status.volumeStatus.phase Ready belongs to virt-handler",
		},
		{
			"the controller must not write a target", Controller, hotplugged(v1.VolumeReady), hotplugged(v1.VolumeReady, target),
			nil, "status.volumeStatus belongs to virt-handler",
		},
		{
			"the controller must not remove the Pod of a mounted volume", Controller, hotplugged(v1.VolumeReady),
			hotplugged(v1.HotplugVolumeDetaching), nil, `cannot change from "Ready" to "Detaching"`,
		},
		{
			"the agent unmounts", Handler, hotplugged(v1.VolumeReady, target), hotplugged(v1.HotplugVolumeUnMounted),
			[]string{"volumeStatus", "volumeStatus.phase"}, "",
		},
		{
			"the controller detaches", Controller, hotplugged(v1.HotplugVolumeUnMounted), hotplugged(v1.HotplugVolumeDetaching),
			[]string{"volumeStatus.phase"}, "",
		},
		{"a phase of something else", Handler, hotplugged(v1.VolumeReady), hotplugged("Elsewhere"), nil, "is not a phase of a hotplugged volume"},
		{"a memory dump begins", Handler, hotplugged(v1.HotplugVolumeMounted), hotplugged(v1.MemoryDumpVolumeInProgress), []string{volumePhase}, ""},
		{"a memory dump of a disk", Handler, hotplugged(v1.VolumeReady), hotplugged(v1.MemoryDumpVolumeInProgress), nil, "cannot change"},
		{"a memory dump is detached before it has ended", Handler, hotplugged(v1.MemoryDumpVolumeInProgress), hotplugged(v1.HotplugVolumeUnMounted), nil, "cannot change"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before, after := status(v1.Running), status(v1.Running)
			if tc.before != nil {
				before.VolumeStatus = []v1.VolumeStatus{*tc.before}
			}
			if tc.after != nil {
				after.VolumeStatus = []v1.VolumeStatus{*tc.after}
			}
			changed, err := Check(tc.writer, before, after)
			if tc.refused != "" {
				if !errors.Is(err, ErrNotOwner) || !strings.Contains(err.Error(), tc.refused) {
					t.Fatalf("got %v, want a refusal with %q", err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.changed, changed); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEveryPhaseOfHotplugHasAWriterAndAnEnd(t *testing.T) {
	for phase, next := range hotplugNext {
		if _, ok := volumePhaseOwners[phase]; !ok {
			t.Errorf("phase %q has no writer", phase)
		}
		for _, n := range next {
			if _, ok := hotplugNext[n]; !ok {
				t.Errorf("phase %q, which follows %q, is not in the table", n, phase)
			}
		}
	}
	if len(hotplugNext) != len(volumePhaseOwners) {
		t.Errorf("%d phases have a writer, %d a next one", len(volumePhaseOwners), len(hotplugNext))
	}
	// From each phase, there is a way to remove the volume.
	for phase := range hotplugNext {
		seen := map[v1.VolumePhase]bool{}
		todo := []v1.VolumePhase{phase}
		for len(todo) > 0 {
			p := todo[0]
			todo = todo[1:]
			if !seen[p] {
				seen[p] = true
				todo = append(todo, hotplugNext[p]...)
			}
		}
		if !seen[v1.HotplugVolumeDetaching] {
			t.Errorf("a volume in phase %q cannot be removed", phase)
		}
	}
}

func TestOrderOfVolumesIsNoChange(t *testing.T) {
	before := status(v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
		s.VolumeStatus = []v1.VolumeStatus{{Name: "b"}, {Name: "a"}}
	})
	after := before.DeepCopy()
	SortVolumes(after.VolumeStatus)
	if after.VolumeStatus[0].Name != "a" {
		t.Error("not sorted")
	}
	if changed, err := Check(Controller, before, after); err != nil || len(changed) > 0 {
		t.Errorf("changed %v, err %v", changed, err)
	}
}

func TestIsWanted(t *testing.T) {
	volume := func(name, claim string) v1.Volume {
		v := v1.Volume{Name: name}
		v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}
		v.PersistentVolumeClaim.ClaimName = claim
		return v
	}
	utility := func(claim string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "v"}}
			vmi.Spec.UtilityVolumes[0].ClaimName = claim
		}
	}
	migrates := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "v"}}
	}
	for _, tc := range []struct {
		name   string
		spec   []v1.Volume
		phase  v1.VolumePhase
		change func(*v1.VirtualMachineInstance)
		want   bool
	}{
		{"in the spec", []v1.Volume{volume("v", "c")}, v1.VolumeReady, nil, true},
		{"not in the spec", []v1.Volume{volume("w", "c")}, v1.VolumeReady, nil, false},
		{"another claim", []v1.Volume{volume("v", "d")}, v1.VolumeReady, nil, false},
		{"migrates to another claim", []v1.Volume{volume("v", "d")}, v1.VolumeReady, migrates, true},
		{"a utility volume", nil, v1.HotplugVolumeMounted, utility("c"), true},
		{"a utility volume with another claim", nil, v1.HotplugVolumeMounted, utility("d"), false},
		{"an unmounted utility volume", nil, v1.HotplugVolumeUnMounted, utility("c"), false},
		{"no claim", []v1.Volume{{Name: "v"}}, v1.VolumeReady, nil, false},
		{"already unmounted", []v1.Volume{volume("v", "c")}, v1.HotplugVolumeUnMounted, nil, false},
		{"already being detached", []v1.Volume{volume("v", "c")}, v1.HotplugVolumeDetaching, nil, false},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Volumes = slices.Clone(tc.spec)
		vmi.Status.VolumeStatus = []v1.VolumeStatus{*hotplugged(tc.phase)}
		if tc.change != nil {
			tc.change(vmi)
		}
		if got := IsWanted(vmi, FindVolume(&vmi.Status, "v")); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
