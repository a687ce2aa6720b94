// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

// claim returns a bound claim of a storage class.
func claim(name, class string) *corev1.PersistentVolumeClaim {
	out := builder.MakePVC(name).Bound("1Gi").Obj()
	out.Spec.StorageClassName = ptr.To(class)
	return out
}

func claims(list ...*corev1.PersistentVolumeClaim) map[string]*corev1.PersistentVolumeClaim {
	out := map[string]*corev1.PersistentVolumeClaim{}
	for _, c := range list {
		out[c.Name] = c
	}
	return out
}

func class(name, driver string, annotations ...string) csi.VolumeSnapshotClass {
	out := csi.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driver}
	for _, value := range annotations {
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, csi.IsDefaultClassAnnotation, value)
	}
	return out
}

func onClaim(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}
}

func withVolume(name string, source v1.VolumeSource) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		spec := &vm.Spec.Template.Spec
		spec.Volumes = append(spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	}
}

func withTPM(vm *v1.VirtualMachine) {
	vm.Spec.Template.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
}

func TestVolumesOfEachType(t *testing.T) {
	dump := &v1.MemoryDumpVolumeSource{}
	dump.ClaimName = "dump"
	vm := builder.MakeVM("vm").
		With(withVolume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root-dv"}})).
		With(withVolume("image", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i"}})).
		With(withVolume("base", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root-dv"},
		}})).
		With(withVolume("data", onClaim("data"))).
		With(withVolume("slow", onClaim("slow"))).
		With(withVolume("gone", onClaim("gone"))).
		With(withVolume("dump", v1.VolumeSource{MemoryDump: dump})).
		With(withTPM).Obj()
	storage := Storage{
		Claims:  claims(claim("root-dv", "fast"), claim("data", "fast"), claim("slow", "plain"), claim("dump", "fast")),
		State:   claim("persistent-state-for-vm-x", "fast"),
		Drivers: map[string]string{"fast": "csi", "plain": "other"},
		Classes: []csi.VolumeSnapshotClass{class("snap", "csi")},
	}
	want := []v1.VolumeSnapshotStatus{
		{Name: "root", Enabled: true},
		{Name: "image", Reason: "Snapshot is not supported for this volumeSource type [image]"},
		{Name: "base", Reason: "Snapshot is not supported for this volumeSource type [base]"},
		{Name: "data", Enabled: true},
		{Name: "slow", Reason: "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [plain] [slow]"},
		{Name: "gone", Reason: "PVC not found"},
		{Name: "dump", Enabled: true},
		{Name: "persistent-state-for-vm", Enabled: true},
	}
	if diff := cmp.Diff(want, Statuses(Volumes(vm, storage))); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	storage.State = nil
	volumes := Volumes(vm, storage)
	if last := volumes[len(volumes)-1]; last.Name != "persistent-state-for-vm" || last.Reason != "PVC not found" {
		t.Errorf("a TPM without a claim is %+v", last)
	}
}

func TestSnapshotClass(t *testing.T) {
	for name, tc := range map[string]struct {
		classes   []csi.VolumeSnapshotClass
		preferred string
		noDriver  bool
		want      string
		err       string
	}{
		"none":                      {},
		"one of another driver":     {classes: []csi.VolumeSnapshotClass{class("a", "other")}},
		"one":                       {classes: []csi.VolumeSnapshotClass{class("a", "csi")}, want: "a"},
		"a missing storage class":   {classes: []csi.VolumeSnapshotClass{class("a", "")}, noDriver: true},
		"several without a default": {classes: []csi.VolumeSnapshotClass{class("a", "csi"), class("b", "csi")}, err: "2 matching VolumeSnapshotClasses for fast"},
		"several with a default":    {classes: []csi.VolumeSnapshotClass{class("a", "csi"), class("b", "csi", "true")}, want: "b"},
		"several, one of them explicitly no default": {
			classes: []csi.VolumeSnapshotClass{class("a", "csi", "false"), class("b", "csi")},
			err:     "2 matching VolumeSnapshotClasses for fast",
		},
		"several defaults": {
			classes: []csi.VolumeSnapshotClass{class("a", "csi", "true"), class("b", "csi", "true")},
			err:     "2 matching VolumeSnapshotClasses for fast",
		},
		"the profile's": {
			classes: []csi.VolumeSnapshotClass{class("a", "csi", "true"), class("b", "csi")}, preferred: "b", want: "b",
		},
		"a missing one of the profile": {classes: []csi.VolumeSnapshotClass{class("a", "csi")}, preferred: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			storage := Storage{
				Drivers: map[string]string{"fast": "csi"}, Classes: tc.classes, Preferred: map[string]string{"fast": tc.preferred},
			}
			if tc.noDriver {
				storage.Drivers = nil
			}
			got, err := storage.SnapshotClass("fast")
			if got != tc.want || (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
				t.Errorf("got %q, %v; want %q, %q", got, err, tc.want, tc.err)
			}
		})
	}
}

func TestListsNamesWhatIsMissing(t *testing.T) {
	content := &v1beta1.VirtualMachineSnapshotContent{}
	vm := builder.MakeVM("vm").
		With(withVolume("root", onClaim("root"))).
		With(withVolume("data", onClaim("data"))).
		With(withVolume("image", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}})).Obj()
	content.Spec.Source.VirtualMachine = &v1beta1.VirtualMachine{ObjectMeta: vm.ObjectMeta, Spec: vm.Spec}
	for name, tc := range map[string]struct {
		backups            []string
		included, excluded []string
		partial            bool
	}{
		"all":                        {[]string{"root", "data"}, []string{"root", "data"}, []string{"image"}, false},
		"one is missing":             {[]string{"root"}, []string{"root"}, []string{"data", "image"}, true},
		"the state of an added TPM":  {[]string{"root", "data", "persistent-state-for-vm"}, []string{"root", "data", "persistent-state-for-vm"}, []string{"image"}, false},
		"nothing could be included":  {nil, nil, []string{"root", "data", "image"}, true},
		"a backup of another volume": {[]string{"root", "data", "x"}, []string{"root", "data"}, []string{"image"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			content.Spec.VolumeBackups = nil
			for _, backup := range tc.backups {
				content.Spec.VolumeBackups = append(content.Spec.VolumeBackups, v1beta1.VolumeBackup{VolumeName: backup})
			}
			got, partial := lists(content)
			want := &v1beta1.SnapshotVolumesLists{IncludedVolumes: tc.included, ExcludedVolumes: tc.excluded}
			if diff := cmp.Diff(want, got); diff != "" || partial != tc.partial {
				t.Errorf("partial %t (-want +got):\n%s", partial, diff)
			}
		})
	}
}

func TestJoin(t *testing.T) {
	long := strings.Repeat("x", 60)
	if got := Join("vm", "root"); got != "vm-root" {
		t.Errorf("got %s", got)
	}
	first, second := Join(long, "disk-1"), Join(long, "disk-2")
	if len(first) != maxName || len(second) != maxName || first == second {
		t.Errorf("%s and %s are too long or equal", first, second)
	}
}

func TestClaimSpec(t *testing.T) {
	for name, tc := range map[string]struct {
		requested, needed *resource.Quantity
		want              string
	}{
		"neither is known":  {nil, nil, "0"},
		"only the request":  {ptr.To(resource.MustParse("2Gi")), nil, "2Gi"},
		"only the snapshot": {nil, ptr.To(resource.MustParse("1Gi")), "1Gi"},
		"enough":            {ptr.To(resource.MustParse("2Gi")), ptr.To(resource.MustParse("1Gi")), "2Gi"},
		"too little":        {ptr.To(resource.MustParse("1Gi")), ptr.To(resource.MustParse("2Gi")), "2Gi"},
	} {
		old := &corev1.PersistentVolumeClaimSpec{VolumeName: "pv", Selector: &metav1.LabelSelector{},
			StorageClassName: ptr.To("fast")}
		if tc.requested != nil {
			old.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *tc.requested}
		}
		before := old.DeepCopy()
		taken := &csi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "taken"},
			Status: &csi.VolumeSnapshotStatus{RestoreSize: tc.needed}}
		got := ClaimSpec(old, taken)
		if size := got.Resources.Requests.Storage().String(); size != tc.want {
			t.Errorf("%s: %s are requested, not %s", name, size, tc.want)
		}
		if got.VolumeName != "" || got.Selector != nil || got.DataSource.Name != "taken" ||
			got.DataSourceRef.Name != "taken" || *got.StorageClassName != "fast" {
			t.Errorf("%s: %+v", name, got)
		}
		if !old.Resources.Requests.Storage().Equal(*before.Resources.Requests.Storage()) {
			t.Errorf("%s: the claim in the snapshot has changed", name)
		}
	}
}
