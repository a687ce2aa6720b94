// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package policy

import (
	"cmp"
	"math"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

type labelSet = map[string]string

func policy(name string, vmi, namespace labelSet) v1alpha1.MigrationPolicy {
	return v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MigrationPolicySpec{
		Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: vmi, NamespaceSelector: namespace},
	}}
}

func TestChoose(t *testing.T) {
	vmi, namespace := labelSet{"a": "1", "b": "2"}, labelSet{"n": "1", "m": "2"}
	for name, tc := range map[string]struct {
		vmi, namespace labelSet
		policies       []v1alpha1.MigrationPolicy
		want           string
	}{
		"none at all":                       {vmi, namespace, nil, ""},
		"none that selects":                 {vmi, namespace, []v1alpha1.MigrationPolicy{policy("p", labelSet{"a": "2"}, nil)}, ""},
		"both selectors must match":         {vmi, namespace, []v1alpha1.MigrationPolicy{policy("p", labelSet{"a": "1"}, labelSet{"n": "9"})}, ""},
		"without labels it selects all":     {nil, nil, []v1alpha1.MigrationPolicy{policy("p", nil, nil)}, "p"},
		"without selectors it selects none": {vmi, namespace, []v1alpha1.MigrationPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}, ""},
		// KubeVirt skips both selectors for a VMI without labels.
		"a VMI without labels is selected by no label": {nil, namespace, []v1alpha1.MigrationPolicy{policy("p", labelSet{"a": "1"}, nil)}, ""},
		"a VMI without labels by its namespace":        {nil, namespace, []v1alpha1.MigrationPolicy{policy("p", nil, labelSet{"n": "9"}), policy("q", nil, labelSet{"n": "1"})}, "q"},
		"an empty value is a value":                    {labelSet{"a": ""}, nil, []v1alpha1.MigrationPolicy{policy("p", labelSet{"b": ""}, nil)}, ""},
		"most labels take precedence": {vmi, namespace, []v1alpha1.MigrationPolicy{
			policy("a", labelSet{"a": "1", "b": "2"}, nil), policy("z", labelSet{"a": "1"}, labelSet{"n": "1", "m": "2"}),
		}, "z"},
		"then most for the VMI": {vmi, namespace, []v1alpha1.MigrationPolicy{
			policy("a", labelSet{"a": "1"}, labelSet{"n": "1"}), policy("z", labelSet{"a": "1", "b": "2"}, nil),
		}, "z"},
		"then the name": {vmi, namespace, []v1alpha1.MigrationPolicy{
			policy("z", labelSet{"a": "1"}, nil), policy("y", labelSet{"b": "2"}, nil),
		}, "y"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if best := Choose(tc.policies, tc.vmi, tc.namespace); best != nil {
				got = best.Name
			}
			if got != tc.want {
				t.Errorf("chose %q, want %q", got, tc.want)
			}
		})
	}
}

// A field that is added to the cluster's configuration and not here would have no effect.
func TestAllClusterFieldsAreResolved(t *testing.T) {
	cluster := clusterconfig.Default().Migrations
	cluster.Network = ptr.To("net")
	got, name := Resolve(&cluster, nil)
	if name != nil {
		t.Errorf("policy %q though there is none", *name)
	}
	from, to := reflect.ValueOf(cluster), reflect.ValueOf(*got)
	for i := range from.NumField() {
		field := from.Type().Field(i).Name
		if !reflect.DeepEqual(from.Field(i).Interface(), to.FieldByName(field).Interface()) {
			t.Errorf("%s differs", field)
		}
		if from.Field(i).Pointer() == to.FieldByName(field).Pointer() {
			t.Errorf("%s is shared with the configuration", field)
		}
	}
}

func TestAllPolicyFieldsOverride(t *testing.T) {
	cluster := clusterconfig.Default().Migrations
	p := policy("p", nil, nil)
	p.Spec.AllowAutoConverge = ptr.To(true)
	p.Spec.BandwidthPerMigration = ptr.To(resource.MustParse("10Mi"))
	p.Spec.CompletionTimeoutPerGiB = ptr.To[int64](1)
	p.Spec.MaxDowntimeMs = ptr.To[uint64](2)
	p.Spec.AllowPostCopy = ptr.To(true)
	p.Spec.AllowWorkloadDisruption = ptr.To(true)
	p.Spec.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{Compression: ptr.To(
		v1.MigrationCompressionZstd)}
	got, name := Resolve(&cluster, &p)
	if name == nil || *name != "p" {
		t.Fatalf("the policy is not named: %v", name)
	}
	from, to := reflect.ValueOf(p.Spec), reflect.ValueOf(*got)
	for i := range from.NumField() {
		field := from.Type().Field(i).Name
		switch {
		case field == "Selectors":
		case from.Field(i).IsNil():
			t.Errorf("this test does not set %s", field)
		case !reflect.DeepEqual(from.Field(i).Interface(), to.FieldByName(field).Interface()):
			t.Errorf("%s does not override", field)
		}
	}
}

func TestEmptyPolicyIsNotReported(t *testing.T) {
	cluster, p := clusterconfig.Default().Migrations, policy("p", nil, nil)
	if _, name := Resolve(&cluster, &p); name != nil {
		t.Errorf("named %q", *name)
	}
}

func TestPolicyWithPostCopyAllowsDisruption(t *testing.T) {
	cluster, p := clusterconfig.Default().Migrations, policy("p", nil, nil)
	p.Spec.AllowPostCopy = ptr.To(true)
	if got, _ := Resolve(&cluster, &p); !*got.AllowWorkloadDisruption {
		t.Error("post-copy alone does not allow disruption")
	}
	p.Spec.AllowWorkloadDisruption = ptr.To(false)
	if got, _ := Resolve(&cluster, &p); *got.AllowWorkloadDisruption {
		t.Error("disruption is allowed although the policy disallows it")
	}
}

func TestMaxBytes(t *testing.T) {
	claim := func(size string) *v1.PersistentVolumeClaimInfo {
		return &v1.PersistentVolumeClaimInfo{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}
	}
	volume := func(change func(*v1.Volume)) v1.Volume {
		v := v1.Volume{Name: "v"}
		change(&v)
		return v
	}
	storage := func(size string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
	emptyDisk := func(size string) v1.Volume {
		return volume(func(v *v1.Volume) { v.EmptyDisk = &v1.EmptyDiskSource{Capacity: resource.MustParse(size)} })
	}
	image := volume(func(v *v1.Volume) { v.ContainerDisk = &v1.ContainerDiskSource{} })
	shared := volume(func(v *v1.Volume) { v.DataVolume = &v1.DataVolumeSource{Name: "claim"} })
	for name, tc := range map[string]struct {
		volumes  []v1.Volume
		moved    []v1.StorageMigratedVolumeInfo
		max, has string
		guest    string
		request  corev1.ResourceList
		want     uint64
	}{
		"memory":            {want: 3 * gib},
		"memory to come":    {max: "8Gi", want: 3 * gib},
		"a shared claim":    {volumes: []v1.Volume{shared}, want: 3 * gib},
		"an empty disk":     {volumes: []v1.Volume{emptyDisk("4Gi")}, want: 7 * gib},
		"an image":          {volumes: []v1.Volume{image}, want: 3*gib + maxUnreserved},
		"a claim's overlay": {volumes: []v1.Volume{volume(func(v *v1.Volume) { v.Ephemeral = &v1.EphemeralVolumeSource{} })}, want: 3*gib + maxUnreserved},
		"a claim that moves": {
			volumes: []v1.Volume{shared}, want: 13 * gib,
			moved: []v1.StorageMigratedVolumeInfo{{VolumeName: "v", SourcePVCInfo: claim("5Gi"),
				DestinationPVCInfo: claim("10Gi")}},
		},
		"a claim that requests more than it has": {
			volumes: []v1.Volume{shared}, want: 8 * gib,
			moved: []v1.StorageMigratedVolumeInfo{{VolumeName: "v", SourcePVCInfo: &v1.PersistentVolumeClaimInfo{
				Capacity: storage("5Gi"), Requests: storage("1Pi"),
			}}},
		},
		"an empty disk of any size":     {volumes: []v1.Volume{emptyDisk("1Pi")}, want: 3*gib + maxUnreserved},
		"one for which there is room":   {volumes: []v1.Volume{emptyDisk("100Gi")}, request: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("200Gi")}, want: 103 * gib},
		"many disks":                    {volumes: []v1.Volume{emptyDisk("60Gi"), image, image}, want: 3*gib + maxUnreserved},
		"memory that is not requested":  {guest: "1Ti", request: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}, want: 2*gib + maxUnreserved},
		"memory that is":                {guest: "1Ti", want: 1025 * gib},
		"memory that was added":         {max: "8Gi", has: "4Gi", want: 5 * gib},
		"memory that cannot be":         {max: "3Gi", has: "1Pi", want: 4 * gib},
		"memory that was never added":   {has: "1Pi", want: 3 * gib},
		"one of which nothing is known": {volumes: []v1.Volume{shared}, moved: []v1.StorageMigratedVolumeInfo{{VolumeName: "v"}}, want: 3*gib + maxUnreserved},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse(cmp.Or(tc.guest, "2Gi")))}
		vmi.Spec.Domain.Resources.Requests = tc.request
		if tc.max != "" {
			vmi.Spec.Domain.Memory.MaxGuest = ptr.To(resource.MustParse(tc.max))
		}
		if tc.has != "" {
			vmi.Status.Memory = &v1.MemoryStatus{GuestCurrent: ptr.To(resource.MustParse(tc.has))}
		}
		vmi.Spec.Volumes, vmi.Status.MigratedVolumes = tc.volumes, tc.moved
		if got := MaxBytes(vmi); got != tc.want {
			t.Errorf("%s: %d GiB, want %d", name, got/gib, tc.want/gib)
		}
	}
}

func TestMaxDuration(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("2Gi"))}
	for name, tc := range map[string]struct {
		options *v1.VMIMConfigurationOptions
		want    time.Duration
	}{
		"nothing is said":       {nil, 900 * time.Second},
		"nothing in particular": {&v1.VMIMConfigurationOptions{}, 900 * time.Second},
		"for ever":              {&v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: ptr.To[int64](0)}, 0},
		"less than nothing":     {&v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: ptr.To[int64](-1)}, 0},
		"a minute":              {&v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: ptr.To[int64](60)}, 6 * time.Minute},
	} {
		if got := MaxDuration(vmi, tc.options); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	vmi.Spec.Domain.Memory.Guest = ptr.To(resource.MustParse("1Pi"))
	if got := MaxDuration(vmi,
		&v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: ptr.To[int64](math.MaxInt64)}); got < 365*24*time.Hour {
		t.Errorf("what is long beyond measure comes to %s", got)
	}
}
