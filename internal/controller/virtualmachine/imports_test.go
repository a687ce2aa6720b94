// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// TestPrintableStatusOfImports checks that the statuses of DataVolumes and claims are in KubeVirt's order among the
// others.
func TestPrintableStatusOfImports(t *testing.T) {
	unschedulable := func() *builder.VMI {
		return builder.MakeVMI("vm").Condition(v1.VirtualMachineInstancePodScheduled, corev1.ConditionFalse, "Unschedulable",
			"")
	}
	for name, tc := range map[string]struct {
		vmi      *builder.VMI
		phase    cdi.DataVolumePhase
		claim    corev1.PersistentVolumeClaimPhase
		starting bool
		want     v1.VirtualMachinePrintableStatus
	}{
		"a failed import takes precedence over no node": {unschedulable(), cdi.DataVolumeFailed, corev1.ClaimPending, false, v1.VirtualMachineStatusDataVolumeError},
		"no node takes precedence over an import":       {unschedulable(), "ImportInProgress", corev1.ClaimPending, false, v1.VirtualMachineStatusUnschedulable},
		"an import takes precedence over binding":       {builder.MakeVMI("vm"), "ImportInProgress", corev1.ClaimPending, false, v1.VirtualMachineStatusProvisioning},
		"binding takes precedence over starting":        {builder.MakeVMI("vm"), cdi.DataVolumePendingPopulation, corev1.ClaimPending, false, v1.VirtualMachineStatusWaitingForVolumeBinding},
		"a bound claim":                                 {builder.MakeVMI("vm"), cdi.DataVolumeSucceeded, corev1.ClaimBound, false, v1.VirtualMachineStatusStarting},
		"running takes precedence over all of them":     {unschedulable().Phase(v1.Running), cdi.DataVolumeFailed, corev1.ClaimLost, false, v1.VirtualMachineStatusRunning},
		"no instance, failed import":                    {nil, cdi.DataVolumeFailed, corev1.ClaimPending, false, v1.VirtualMachineStatusDataVolumeError},
		"no instance, import in progress":               {nil, "ImportInProgress", corev1.ClaimPending, false, v1.VirtualMachineStatusProvisioning},
		"no instance, unbound claim":                    {nil, cdi.DataVolumePendingPopulation, corev1.ClaimPending, false, v1.VirtualMachineStatusStopped},
		"no instance, unbound claim, starting":          {nil, cdi.DataVolumePendingPopulation, corev1.ClaimPending, true, v1.VirtualMachineStatusWaitingForVolumeBinding},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Scope{
				VM: builder.MakeVM("vm").Obj(), Strategy: v1.RunStrategyAlways, Now: noon, starting: tc.starting,
				dataVolumes: map[string]*cdi.DataVolume{"root": {Status: cdi.DataVolumeStatus{Phase: tc.phase}}},
				claims: map[string]*corev1.PersistentVolumeClaim{
					"root": {Status: corev1.PersistentVolumeClaimStatus{Phase: tc.claim}}},
			}
			if tc.vmi != nil {
				s.VMI = tc.vmi.Obj()
			}
			if got := printableStatus(s); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestImportRetry checks that retries become rarer while a VM fails.
func TestImportRetry(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{
		0: 15 * time.Second, 20 * time.Second: 20 * time.Second, time.Minute: time.Minute, time.Hour: 5 * time.Minute,
	} {
		s := &Scope{Now: noon, VM: builder.MakeVM("vm").Obj()}
		if got := s.importRetry(); got != 15*time.Second {
			t.Errorf("for a VM that did not fail: got %s", got)
		}
		s.VM.Status.Conditions = []v1.VirtualMachineCondition{
			{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-since))},
		}
		if got := s.importRetry(); got != want {
			t.Errorf("for a VM that has been failing for %s: got %s, want %s", since, got, want)
		}
	}
}

// TestCompare checks which changes of the template need a restart.
func TestCompare(t *testing.T) {
	const uuid = "5d307ca9-b3ef-428c-8861-06e72d69f223"
	running := builder.MakeVMI("vm").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = &v1.Firmware{UUID: uuid}
	}).Obj()
	for name, tc := range map[string]struct {
		change func(*v1.VirtualMachineInstanceTemplateSpec)
		// wantLive and wantStaged are the changed field that needs a restart, or empty.
		wantLive, wantStaged string
	}{
		"nothing":      {func(*v1.VirtualMachineInstanceTemplateSpec) {}, "", ""},
		"empty is nil": {func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.NodeSelector = map[string]string{} }, "", ""},
		"node selector": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) {
				t.Spec.NodeSelector = map[string]string{
					"a": "b"}
			}, "", "nodeSelector",
		},
		"affinity":    {func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Affinity = &corev1.Affinity{} }, "", "affinity"},
		"tolerations": {func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Tolerations = []corev1.Toleration{{}} }, "", "tolerations"},
		"sockets": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.CPU.Sockets = 9 }, "", "domain.cpu.sockets",
		},
		"a volume": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) {
				t.Spec.Volumes = append(t.Spec.Volumes, v1.Volume{Name: "more"})
			},
			"volumes[more]", "volumes[more]",
		},
		"the same UUID": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.Firmware = &v1.Firmware{UUID: uuid} }, "", "",
		},
		"another UUID": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.Firmware = &v1.Firmware{UUID: "another"} },
			"domain.firmware.uuid", "domain.firmware.uuid",
		},
		"a label": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) { t.ObjectMeta.Labels = map[string]string{"a": "b"} },
			"", "",
		},
		"an equal quantity in another unit": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) {
				t.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("131072Ki"))}
			}, "", "",
		},
		"the descheduler's annotation": {
			func(t *v1.VirtualMachineInstanceTemplateSpec) {
				t.ObjectMeta.Annotations = map[string]string{"descheduler.alpha.kubernetes.io/evict": "true"}
			}, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := builder.MakeVM("vm").Obj().Spec.Template
			base.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
			current := base.DeepCopy()
			tc.change(current)
			before := current.DeepCopy()
			for live, want := range map[bool]string{true: tc.wantLive, false: tc.wantStaged} {
				if got := compare(base, current, running, live, podspec.LiveMetadata{}); !got.known ||
					strings.Join(got.changed, ", ") != want || got.restart != liveupdate.Message(got.changed) {
					t.Errorf("live %t: got %+v, want %q", live, got, want)
				}
			}
			if len(before.ObjectMeta.Annotations) != len(current.ObjectMeta.Annotations) {
				t.Error("the template was changed")
			}
		})
	}
}
