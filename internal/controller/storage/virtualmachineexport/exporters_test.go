// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/internal/optimistic"
)

func kept(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	out, err := transformPod(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	trimmed, ok := out.(*corev1.Pod)
	if !ok {
		t.Fatalf("got %T", out)
	}
	return trimmed
}

// largePod has everything that is read, and much that is not.
func largePod() (whole, want *corev1.Pod) {
	meta := metav1.ObjectMeta{
		Namespace: "a", Name: "virt-export-export", UID: "pod-uid", ResourceVersion: "7",
		CreationTimestamp: metav1.Unix(1, 0), DeletionTimestamp: ptr.To(metav1.Unix(2, 0)),
		Labels: map[string]string{v1.AppLabel: exportv1.App},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(exportIn("a", "export", "", kindClaim, "data"),
				exportv1.GroupVersion.WithKind("VirtualMachineExport")),
		},
		Annotations: map[string]string{export.ContentAnnotation: "content", export.CertificateEndAnnotation: "end",
			export.ImageAnnotation: "true"},
	}
	volume := func(name string, source corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: source}
	}
	claim := volume("volume-0",
		corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})
	token := volume("token", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "token"}})
	status := corev1.PodStatus{
		Phase: corev1.PodFailed, Message: "evicted", PodIP: "10.0.0.1",
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "exporter", RestartCount: 1}},
	}
	spec := corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](60), Volumes: []corev1.Volume{claim, token}}
	want = &corev1.Pod{ObjectMeta: meta, Spec: spec, Status: status}
	whole = want.DeepCopy()
	large := strings.Repeat("x", 1<<20)
	whole.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: large}}
	whole.Labels["mine"], whole.Annotations["mine"] = large, large
	whole.OwnerReferences = append(whole.OwnerReferences, metav1.OwnerReference{Name: large})
	whole.Finalizers = []string{large}
	whole.Spec.Containers = []corev1.Container{{Name: "exporter", Args: []string{large}}}
	whole.Spec.Volumes = append(whole.Spec.Volumes,
		volume("content", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{{Path: large}},
		}}))
	whole.Status.Reason = large
	return whole, want
}

func TestWhatIsKeptOfAnExporter(t *testing.T) {
	whole, want := largePod()
	if got := kept(t, whole); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Anybody may have given a Pod the label before only virt-controller could.
func TestWhatIsKeptOfAForeignPod(t *testing.T) {
	whole, want := largePod()
	whole.OwnerReferences, want.OwnerReferences, want.Annotations = nil, nil, nil
	want.Spec, want.Status = corev1.PodSpec{}, corev1.PodStatus{}
	if got := kept(t, whole); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The reconciler patches what it has from the cache. The patch must not remove what the cache does not have.
func TestPatchesOfWhatIsKept(t *testing.T) {
	whole, _ := largePod()
	read := kept(t, whole)
	for change, want := range map[*corev1.Pod]string{
		read.DeepCopy(): `{"metadata":{"resourceVersion":"7"}}`,
		func() *corev1.Pod {
			changed := read.DeepCopy()
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, export.ContentAnnotation, "new")
			return changed
		}(): `{"metadata":{"annotations":{"export.vireo.io/content":"new"},"resourceVersion":"7"}}`,
		func() *corev1.Pod {
			changed := read.DeepCopy()
			changed.Spec.ActiveDeadlineSeconds = ptr.To[int64](export.StopDeadline)
			return changed
		}(): `{"metadata":{"resourceVersion":"7"},"spec":{"activeDeadlineSeconds":1}}`,
	} {
		patch, err := optimistic.MergeFrom(read).Data(client.Object(change))
		if err != nil || string(patch) != want {
			t.Errorf("got %s, %v; want %s", patch, err, want)
		}
	}
}
