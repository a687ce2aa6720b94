// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package policy

import (
	"cmp"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

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
			moved: []v1.StorageMigratedVolumeInfo{{VolumeName: "v", SourcePVCInfo: claim("5Gi"), DestinationPVCInfo: claim("10Gi")}},
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
	if got := MaxDuration(vmi, &v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: ptr.To[int64](math.MaxInt64)}); got < 365*24*time.Hour {
		t.Errorf("what is long beyond measure comes to %s", got)
	}
}
