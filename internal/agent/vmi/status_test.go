// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// scopeOf returns a scope of an assigned VMI whose domain runs in a ready Pod.
func scopeOf(changes ...func(*scope)) *scope {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	vmi.Status.Phase = v1.Scheduled
	s := &scope{Scope: phase.Scope{
		Key: types.NamespacedName{Namespace: "ns", Name: "vm"}, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		VMI: vmi, Assigned: true, DomainRead: true,
		Domain: &hypervisor.Domain{State: hypervisor.StateRunning, XML: &libvirtxml.Domain{}},
		Pod: &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		}}},
	}}
	s.use(&podCache{}, nil, nil)
	for _, change := range changes {
		change(s)
	}
	s.Before = s.VMI.DeepCopy()
	return s
}

func phaseOf(p v1.VirtualMachineInstancePhase) func(*scope) {
	return func(s *scope) { s.VMI.Status.Phase = p }
}

func domainIn(state hypervisor.State, reason string) func(*scope) {
	return func(s *scope) { s.Domain.State, s.Domain.Reason = state, reason }
}

func podCondition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string) func(*scope) {
	return func(s *scope) {
		s.Pod.Status.Conditions = append(s.Pod.Status.Conditions,
			corev1.PodCondition{Type: kind, Status: status, Reason: reason})
	}
}

func noPodConditions(s *scope) { s.Pod.Status.Conditions = nil }

func migrating(mode v1.MigrationMode) func(*scope) {
	return func(s *scope) {
		s.VMI.Status.NodeName = "here"
		s.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourceNode: "here", TargetNode: "there",
			Mode: mode}
	}
}

func domainNotRead(s *scope) { s.DomainRead, s.Domain = false, nil }

func notReady(s *scope) {
	s.VMI.Status.Conditions = append(s.VMI.Status.Conditions, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse, Reason: v1.GuestNotRunningReason,
	})
}

func podDeleted(s *scope) { s.Pod.DeletionTimestamp = &metav1.Time{Time: s.Now} }

func nodeLost(s *scope) {
	s.VMI.Status.Conditions = append(s.VMI.Status.Conditions, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceNodeUnresponsive, Status: corev1.ConditionTrue,
		Reason: v1.VirtualMachineInstanceReasonNodeLost,
	})
}

func TestComputeStatus(t *testing.T) {
	boom := errors.New("boom")
	lost := &phase.UnreachableError{Err: fmt.Errorf("%w: refused", hypervisor.ErrUnreachable)}
	for _, tc := range []struct {
		name     string
		scope    *scope
		phaseErr error
		phase    v1.VirtualMachineInstancePhase
		// want has "Type=Status Reason" of those of Ready, Paused and Synchronized that are set.
		want []string
	}{
		{"a started guest", scopeOf(), nil, v1.Running, []string{"Ready=True "}},
		{"a guest that is being started", scopeOf(domainIn(hypervisor.StatePaused, hypervisor.PausedByLibvirt)), nil, v1.Scheduled, nil},
		{"a guest that was started paused", scopeOf(domainIn(hypervisor.StatePaused, hypervisor.PausedByUser)), nil, v1.Running,
			[]string{"Paused=True PausedByUser", "Ready=False GuestNotRunning"}},
		{"a guest with a full disk", scopeOf(phaseOf(v1.Running), domainIn(hypervisor.StatePaused, hypervisor.PausedIOError)), nil, v1.Running,
			[]string{"Paused=True PausedIOError", "Ready=False GuestNotRunning"}},
		{"a guest that QEMU has stopped", scopeOf(phaseOf(v1.Running), domainIn(hypervisor.StatePaused, hypervisor.PausedUnknown)), nil, v1.Running,
			[]string{"Paused=True PausedUnknown", "Ready=False GuestNotRunning"}},
		{"a guest that QEMU has stopped at its start", scopeOf(domainIn(hypervisor.StatePaused, hypervisor.PausedUnknown)), nil, v1.Running,
			[]string{"Paused=True PausedUnknown", "Ready=False GuestNotRunning"}},
		{"a guest that libvirt could not resume", scopeOf(phaseOf(v1.Running), domainIn(hypervisor.StatePaused, hypervisor.PausedAPIError)), nil,
			v1.Running, []string{"Paused=True PausedAPIError", "Ready=False GuestNotRunning"}},
		{"a guest that its watchdog has paused", scopeOf(phaseOf(v1.Running), domainIn(hypervisor.StatePaused, hypervisor.PausedWatchdog)), nil,
			v1.Running, []string{"Paused=True PausedWatchdog", "Ready=False GuestNotRunning"}},
		{"a guest that has crashed", scopeOf(phaseOf(v1.Running), domainIn(hypervisor.StatePaused, hypervisor.PausedCrashed)), nil, v1.Running,
			[]string{"Paused=True PausedCrashed", "Ready=False GuestNotRunning"}},
		{"a guest without a part of its memory", scopeOf(phaseOf(v1.Running), domainIn(hypervisor.StatePaused, hypervisor.PausedPostcopyFailed)),
			nil, v1.Running, []string{"Paused=True PausedPostcopyFailed", "Ready=False GuestNotRunning"}},
		{"a guest that a migration has paused", scopeOf(phaseOf(v1.Running), migrating(v1.MigrationPaused), domainIn(hypervisor.StatePaused, hypervisor.PausedByLibvirt)),
			nil, v1.Running, []string{"Paused=True PausedByMigrationMonitor", "Ready=False GuestNotRunning"}},
		{"a guest that is migrated", scopeOf(phaseOf(v1.Running), migrating(v1.MigrationPreCopy), domainIn(hypervisor.StatePaused, hypervisor.PausedByLibvirt)),
			nil, v1.Running, []string{"Ready=True "}},
		{"a guest that has ended", scopeOf(phaseOf(v1.Running), domainIn(hypervisor.StateEnded, "Shutdown")), nil, v1.Running,
			[]string{"Ready=False GuestNotRunning"}},
		{"a guest that does not start", scopeOf(domainIn(hypervisor.StateDefined, "")), boom, v1.Scheduled,
			[]string{"Ready=False GuestNotRunning", "Synchronized=False Synchronizing with the Domain failed."}},
		{"a guest that can never start", scopeOf(domainIn(hypervisor.StateDefined, "")), &outcome.Terminal{Reason: "Bad", Err: boom}, v1.Scheduled,
			[]string{"Ready=False GuestNotRunning", "Synchronized=False Bad"}},
		{"a guest that waits for a volume", scopeOf(domainIn(hypervisor.StateDefined, "")), &outcome.Wait{Reason: "x"}, v1.Scheduled, nil},
		{"a Pod that is being deleted", scopeOf(phaseOf(v1.Running), podDeleted), nil, v1.Running, []string{"Ready=False PodTerminating"}},
		{"an unreachable hypervisor", scopeOf(phaseOf(v1.Running), domainNotRead), lost, v1.Running,
			[]string{"Ready=True ", "Synchronized=False LibvirtUnreachable"}},
		{"a hypervisor out of reach before the start", scopeOf(domainNotRead), lost, v1.Scheduled,
			[]string{"Synchronized=False LibvirtUnreachable"}},
		{"a lost connection", scopeOf(phaseOf(v1.Running), domainNotRead), &outcome.Wait{Reason: "x"}, v1.Running, []string{"Ready=True "}},
		{"a connection lost after the guest has ended", scopeOf(phaseOf(v1.Running), domainNotRead, notReady), lost, v1.Running,
			[]string{"Ready=False GuestNotRunning", "Synchronized=False LibvirtUnreachable"}},
		{"a guest that is read again", scopeOf(phaseOf(v1.Running), notReady), nil, v1.Running, []string{"Ready=True "}},
		{"a guest on a node that counts as lost", scopeOf(phaseOf(v1.Running), nodeLost), nil, v1.Running, nil},
		{"a guest in an unknown phase", scopeOf(phaseOf(v1.Unknown)), nil, v1.Running, []string{"Ready=True "}},
		{"a Pod that is not ready", scopeOf(noPodConditions, podCondition(corev1.ContainersReady, corev1.ConditionFalse, "ContainersNotReady")),
			nil, v1.Running, []string{"Ready=False ContainersNotReady"}},
		{"a Pod without conditions", scopeOf(noPodConditions), nil, v1.Running, []string{"Ready=False PodConditionMissing"}},
		{"a Pod with its own gate only", scopeOf(func(s *scope) {
			s.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1.VirtualMachineUnpaused}}
		}), nil, v1.Running, []string{"Ready=True "}},
		{"a Pod with a foreign gate", scopeOf(func(s *scope) {
			s.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
		}), nil, v1.Running, []string{"Ready=False ReadinessGatesNotReady"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			computeStatus(tc.scope, tc.phaseErr)
			status := &tc.scope.VMI.Status
			if status.Phase != tc.phase {
				t.Errorf("phase %s, want %s", status.Phase, tc.phase)
			}
			var got []string
			for _, kind := range []v1.VirtualMachineInstanceConditionType{
				v1.VirtualMachineInstancePaused, v1.VirtualMachineInstanceReady, v1.VirtualMachineInstanceSynchronized,
			} {
				if c := vmistatus.FindCondition(status, kind); c != nil {
					got = append(got, fmt.Sprintf("%s=%s %s", kind, c.Status, c.Reason))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if _, err := vmistatus.Check(vmistatus.Handler, &tc.scope.Before.Status, status); err != nil {
				t.Error(err)
			}
			// Computing it again changes nothing.
			again := status.DeepCopy()
			tc.scope.Now = tc.scope.Now.Add(time.Minute)
			computeStatus(tc.scope, tc.phaseErr)
			if diff := cmp.Diff(again, status); diff != "" {
				t.Errorf("second time: %s", diff)
			}
		})
	}
}

// A guest of a machine type that QEMU here lacks is never started with another one without a report.
func TestMachineTypeReplaced(t *testing.T) {
	const redHat = "pc-q35-rhel9.2.0"
	for _, tc := range []struct{ spec, running, want string }{
		{"q35", "pc-q35-10.0", ""},
		{"pc-q35-7.2", "pc-q35-7.2", ""},
		{redHat, "pc-q35-7.2", "True MachineTypeOfOtherBuild spec.domain.machine.type: QEMU has the machine type pc-q35-rhel9.2.0 in Red Hat's " +
			"distributions only: a guest that starts gets pc-q35-7.2, the nearest to it"},
		{redHat, redHat, ""}, // It came by a migration.
	} {
		s := scopeOf(func(s *scope) {
			s.VMI.Spec.Domain.Machine = &v1.Machine{Type: tc.spec}
			s.Domain.XML.OS = &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Machine: tc.running}}
		})
		computeStatus(s, nil)
		got := ""
		if c := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceMachineTypeReplaced); c != nil {
			got = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
		}
		if got != tc.want {
			t.Errorf("%s runs as %s: %q, want %q", tc.spec, tc.running, got, tc.want)
		}
		if _, err := vmistatus.Check(vmistatus.Handler, &s.Before.Status, &s.VMI.Status); err != nil {
			t.Error(err)
		}
	}
}

func TestStopRequested(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }
	sixty := int64(60)
	for _, tc := range []struct {
		name     string
		vmi, pod *metav1.Time
		want     time.Time
	}{
		{"nothing deleted", nil, nil, time.Time{}},
		{"the VMI", at(0), nil, now},
		{"the Pod, whose timestamp is its end", nil, at(time.Minute), now},
		{"both, the VMI first", at(0), at(70 * time.Second), now},
		{"both, the Pod first", at(10 * time.Second), at(time.Minute), now},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scopeOf()
			s.VMI.DeletionTimestamp = tc.vmi
			if s.Pod.DeletionTimestamp = tc.pod; tc.pod != nil {
				s.Pod.DeletionGracePeriodSeconds = &sixty
			}
			got, ok := s.stopRequested()
			if ok != !tc.want.IsZero() || !got.Equal(tc.want) {
				t.Errorf("got %v %v, want %v", got, ok, tc.want)
			}
		})
	}
}

func TestMigratable(t *testing.T) {
	volume := func(v v1.VolumeSource) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: v})
		}
	}
	claim := func(modes ...corev1.PersistentVolumeAccessMode) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			volume(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}})(vmi)
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{
				Name: "v", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "c", AccessModes: modes},
			}}
		}
	}
	plugged := func(status ...v1.VolumeStatus) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			volume(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}})(vmi)
			vmi.Status.VolumeStatus = status
		}
	}
	state := func(mode corev1.PersistentVolumeAccessMode) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: new(true)}
			const name = "persistent-state-for-vm-0a1b2"
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: name, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
				ClaimName: name, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			}}}
		}
	}
	bridge := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{
			Name: "n", InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
		}}
		vmi.Spec.Networks = []v1.Network{{Name: "n", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
	}
	allowed := func(vmi *v1.VirtualMachineInstance) {
		vmi.Annotations = map[string]string{v1.AllowPodBridgeNetworkLiveMigrationAnnotation: ""}
	}
	passthrough := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.CPU = &v1.CPU{Model: v1.CPUModeHostPassthrough}
	}
	invtsc := func(policy string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "invtsc", Policy: policy}}}
		}
	}
	reenlightened := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}}
	}
	sameTSC := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: new(int64(2_000_000_000))}
	}
	migrated := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: vmi.Spec.Volumes[0].Name}}
	}
	const noTSC = "False NoTSCFrequencyNotLiveMigratable"
	type mutate = func(*v1.VirtualMachineInstance)
	for _, tc := range []struct {
		name          string
		changes       []mutate
		live, storage string
		method        v1.VirtualMachineInstanceMigrationMethod
	}{
		{"nothing", nil, "True ", "True ", v1.LiveMigration},
		{"a container disk", []mutate{volume(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}})}, "True ", "True ", v1.BlockMigration},
		{"a shared claim", []mutate{claim(corev1.ReadWriteMany)}, "True ", "True ", v1.LiveMigration},
		{"a ReadWriteOnce claim", []mutate{claim(corev1.ReadWriteOnce)}, "False DisksNotLiveMigratable", "True ", v1.LiveMigration},
		{"a ReadWriteOnce claim that is migrated", []mutate{claim(corev1.ReadWriteOnce), migrated}, "True ", "True ", v1.BlockMigration},
		{"a volume that is to be plugged", []mutate{plugged()}, "True ", "True ", v1.LiveMigration},
		{
			"a volume that is to be plugged without a claim",
			[]mutate{plugged(v1.VolumeStatus{Name: "v", HotplugVolume: &v1.HotplugVolumeStatus{}})},
			"True ", "True ", v1.LiveMigration,
		},
		{
			"a plugged ReadWriteOnce claim", []mutate{plugged(v1.VolumeStatus{
				Name: "v", HotplugVolume: &v1.HotplugVolumeStatus{},
				PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "c"},
			})}, "False DisksNotLiveMigratable", "True ", v1.LiveMigration,
		},
		{"a hotpluggable claim of the Pod that is not known", []mutate{plugged(v1.VolumeStatus{Name: "v"})}, "False DisksNotLiveMigratable", "True ", v1.LiveMigration},
		// The state is migrated too, to a claim of the target.
		{"state on one node", []mutate{state(corev1.ReadWriteOnce)}, "True ", "True ", v1.LiveMigration},
		{"state that is shared", []mutate{state(corev1.ReadWriteMany)}, "True ", "True ", v1.LiveMigration},
		{"a bridge on the Pod network", []mutate{bridge}, "False InterfaceNotLiveMigratable", "False InterfaceNotLiveMigratable", v1.LiveMigration},
		{"an allowed bridge", []mutate{bridge, allowed}, "True ", "True ", v1.LiveMigration},
		{"the node's CPU", []mutate{passthrough}, "True ", "True ", v1.LiveMigration},
		{"a constant time stamp counter", []mutate{invtsc("require")}, noTSC, noTSC, v1.LiveMigration},
		{"a constant time stamp counter with a frequency", []mutate{invtsc("require"), sameTSC}, "True ", "True ", v1.LiveMigration},
		{"no constant time stamp counter", []mutate{invtsc("disable")}, "True ", "True ", v1.LiveMigration},
		{"reenlightenment", []mutate{reenlightened}, noTSC, noTSC, v1.LiveMigration},
		{"several reasons", []mutate{bridge, claim()}, "False NotMigratable", "False InterfaceNotLiveMigratable", v1.LiveMigration},
	} {
		t.Run(tc.name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{}
			for _, change := range tc.changes {
				change(vmi)
			}
			setMigratable(vmi, metav1.Time{})
			show := func(kind v1.VirtualMachineInstanceConditionType) string {
				c := vmistatus.FindCondition(&vmi.Status, kind)
				return string(c.Status) + " " + c.Reason
			}
			if got := show(v1.VirtualMachineInstanceIsMigratable); got != tc.live {
				t.Errorf("LiveMigratable %s, want %s", got, tc.live)
			}
			if got := show(v1.VirtualMachineInstanceIsStorageLiveMigratable); got != tc.storage {
				t.Errorf("StorageLiveMigratable %s, want %s", got, tc.storage)
			}
			if vmi.Status.MigrationMethod != tc.method {
				t.Errorf("method %s, want %s", vmi.Status.MigrationMethod, tc.method)
			}
		})
	}
}
