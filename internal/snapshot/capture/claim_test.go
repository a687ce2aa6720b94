// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
)

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
		old := &corev1.PersistentVolumeClaimSpec{VolumeName: "pv", Selector: &metav1.LabelSelector{}, StorageClassName: ptr.To("fast")}
		if tc.requested != nil {
			old.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *tc.requested}
		}
		before := old.DeepCopy()
		taken := &csi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Status: &csi.VolumeSnapshotStatus{RestoreSize: tc.needed}}
		got := ClaimSpec(old, taken)
		if size := got.Resources.Requests.Storage().String(); size != tc.want {
			t.Errorf("%s: %s are requested, not %s", name, size, tc.want)
		}
		if got.VolumeName != "" || got.Selector != nil || got.DataSource.Name != "taken" || got.DataSourceRef.Name != "taken" || *got.StorageClassName != "fast" {
			t.Errorf("%s: %+v", name, got)
		}
		if !old.Resources.Requests.Storage().Equal(*before.Resources.Requests.Storage()) {
			t.Errorf("%s: the claim in the snapshot has changed", name)
		}
	}
}
