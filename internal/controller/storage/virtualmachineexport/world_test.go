// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinebackup"
	backupplan "github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/decide/export"
)

func TestGuestOfABackupWhoseTrackerIsGone(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	backup := &v1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "b-uid"}}
	backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
		Kind: "VirtualMachineBackupTracker", Name: "gone"}
	guest := func(namespace, name, uid string) *v1.VirtualMachineInstance {
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		vmi.Status.DiskBackup = &v1.DiskBackup{ID: uid}
		return vmi
	}
	// The claim of the backup was given to it, and the backup was not requested.
	claimed := guest("a", "claimed", "another")
	claimed.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "backup-b-uid"}}
	for want, guests := range map[string][]client.Object{
		"guest": {guest("a", "guest", "b-uid"), guest("a", "other", "another"), guest("b", "elsewhere", "b-uid"), claimed},
		"":      {claimed, guest("b", "elsewhere", "b-uid")},
	} {
		cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(backup).WithObjects(guests...).
			WithIndex(&v1.VirtualMachineInstance{}, virtualmachinebackup.GuestIndex, func(o client.Object) []string {
				vmi, _ := o.(*v1.VirtualMachineInstance)
				return backupplan.UIDs(vmi)
			}).Build()
		s := &scope{Reconciler: &Reconciler{Client: cached},
			export: exportIn("a", "b", "backup.kubevirt.io", "VirtualMachineBackup", "b")}
		w := &export.Observed{Export: s.export}
		if err := s.readBackup(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if found := w.Guest != nil; found != (want != "") || found && w.Guest.Name != want {
			t.Errorf("got %v, want %q", w.Guest, want)
		}
	}
}
