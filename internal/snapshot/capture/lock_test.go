// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func TestObstacle(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Source, *corev1.PersistentVolumeClaim)
		want   string
	}{
		"none": {func(*Source, *corev1.PersistentVolumeClaim) {}, ""},
		"no claim": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Volumes[0].Claim = nil }, "source default/vm volume doesnt exist: root",
		},
		"a claim being deleted": {
			func(_ *Source, c *corev1.PersistentVolumeClaim) {
				c.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(1, 0)))
			},
			"source default/vm volume is being deleted: root",
		},
		"an unbound claim": {
			func(_ *Source, c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }, "source default/vm volume not bound: root",
		},
		"a claim that is being filled": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Unfilled = map[string]string{"root": ""} },
			"source default/vm volume not populated: root",
		},
		"a claim that nothing fills": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Unfilled = map[string]string{"root": "install it"} },
			"source default/vm volume not populated: root: install it",
		},
		"no default among the classes": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) {
				s.Volumes[0].Undecided, s.Volumes[0].Reason = true, "2 matching VolumeSnapshotClasses for fast"
			},
			"source default/vm 2 matching VolumeSnapshotClasses for fast: root",
		},
		"a volume without a snapshot class": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Volumes[0].Class, s.Volumes[0].Reason = "", "none" }, "",
		},
		"Pods of others": {func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Pods = 2 }, "source is offline but 2 pods using PVCs [root]"},
		"the guest's own Pod": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Pods, s.Online = 1, true }, "",
		},
		"another snapshot": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.VM.Status.SnapshotInProgress = ptr.To("b") }, `snapshot "b" in progress`,
		},
		"this snapshot": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.VM.Status.SnapshotInProgress = ptr.To("a") }, "",
		},
		"a restore": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.VM.Status.RestoreInProgress = ptr.To("r") }, `restore "r" in progress`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := claim("root", "fast")
			source := Source{VM: builder.MakeVM("vm").Obj(), Volumes: []Volume{
				{Name: "root", ClaimName: "root", Claim: root, Class: "snap"}, {Name: "image"}, {Name: "again", ClaimName: "root", Claim: root},
			}}
			tc.change(&source, root)
			if got := source.Obstacle("a"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLockedNeedsBothWrites(t *testing.T) {
	status := func(vm *v1.VirtualMachine) { vm.Status.SnapshotInProgress = ptr.To("a") }
	for name, tc := range map[string]struct {
		vm   *v1.VirtualMachine
		want bool
	}{
		"no VM":          {nil, false},
		"neither":        {builder.MakeVM("vm").Obj(), false},
		"only status":    {builder.MakeVM("vm").With(status).Obj(), false},
		"only finalizer": {builder.MakeVM("vm").Finalizers(snapshot.SourceFinalizer).Obj(), false},
		"both":           {builder.MakeVM("vm").Finalizers(snapshot.SourceFinalizer).With(status).Obj(), true},
	} {
		if got := (Source{VM: tc.vm}).Locked("a"); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
