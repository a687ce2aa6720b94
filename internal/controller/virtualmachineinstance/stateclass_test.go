// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestDefaultOf(t *testing.T) {
	class := func(name string, age time.Duration, annotation string) storagev1.StorageClass {
		return storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
			Annotations: map[string]string{annotation: "true"},
		}}
	}
	const k8s, virt = "storageclass.kubernetes.io/is-default-class", "storageclass.kubevirt.io/is-default-virt-class"
	off := class("off", 0, k8s)
	off.Annotations[k8s] = "false"
	for name, tc := range map[string]struct {
		classes []storagev1.StorageClass
		want    string
	}{
		"none":         {nil, ""},
		"not marked":   {[]storagev1.StorageClass{class("a", 0, "x"), off}, ""},
		"one":          {[]storagev1.StorageClass{class("a", 0, "x"), class("b", 0, k8s)}, "b"},
		"the newest":   {[]storagev1.StorageClass{class("a", time.Hour, k8s), class("b", 0, k8s)}, "b"},
		"by name":      {[]storagev1.StorageClass{class("b", 0, k8s), class("a", 0, k8s)}, "a"},
		"for VMs":      {[]storagev1.StorageClass{class("a", time.Hour, virt), class("b", 0, k8s)}, "a"},
		"only for VMs": {[]storagev1.StorageClass{class("a", 0, virt)}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if chosen := defaultOf(tc.classes); chosen != nil {
				got = chosen.Name
			}
			if got != tc.want {
				t.Errorf("chose %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSharedAccess(t *testing.T) {
	set := func(mode string, access ...any) any { return map[string]any{"volumeMode": mode, "accessModes": access} }
	for name, tc := range map[string]struct {
		sets any
		want corev1.PersistentVolumeAccessMode
	}{
		"no profile":       {nil, corev1.ReadWriteOnce},
		"shared":           {[]any{set("Filesystem", "ReadWriteOnce", "ReadWriteMany")}, corev1.ReadWriteMany},
		"not shared":       {[]any{set("Filesystem", "ReadWriteOnce")}, corev1.ReadWriteOnce},
		"only blocks":      {[]any{set("Block", "ReadWriteMany"), set("Filesystem", "ReadWriteOnce")}, corev1.ReadWriteOnce},
		"second set":       {[]any{set("Block", "ReadWriteOnce"), set("Filesystem", "ReadWriteMany")}, corev1.ReadWriteMany},
		"without modes":    {[]any{map[string]any{"volumeMode": "Filesystem"}}, corev1.ReadWriteOnce},
		"without anything": {[]any{}, corev1.ReadWriteOnce},
	} {
		t.Run(name, func(t *testing.T) {
			profile := &unstructured.Unstructured{Object: map[string]any{}}
			if tc.sets != nil {
				profile.Object["status"] = map[string]any{"claimPropertySets": tc.sets}
			}
			got, err := sharedAccess(profile)
			if err != nil || !slices.Equal(got, []corev1.PersistentVolumeAccessMode{tc.want}) {
				t.Errorf("got %v, %v, want %s", got, err, tc.want)
			}
		})
	}
	profile := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"claimPropertySets": "x"}}}
	if _, err := sharedAccess(profile); err == nil {
		t.Error("no error for a profile of another type")
	}
}
