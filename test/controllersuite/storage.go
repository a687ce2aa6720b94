// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/test/apiserver"
)

// NewStorageClass creates a storage class for one spec.
func NewStorageClass(
	binding storagev1.VolumeBindingMode, change func(*storagev1.StorageClass),
) *storagev1.StorageClass {
	GinkgoHelper()
	class := &storagev1.StorageClass{Provisioner: "csi.example", VolumeBindingMode: &binding}
	class.GenerateName = "spec-"
	change(class)
	ExpectCreated(class)
	DeferCleanup(func() { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, class))).To(Succeed()) })
	return class
}

// AsDefault makes a storage class the default.
func AsDefault(class *storagev1.StorageClass) {
	class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
}

// VolumeSnapshots reads VolumeSnapshots from the suite's API server. It triggers no reconciliation.
type VolumeSnapshots struct {
	// Absent is whether the cluster has no VolumeSnapshots.
	Absent bool
}

// Get reads a VolumeSnapshot.
func (v VolumeSnapshots) Get(ctx context.Context, key client.ObjectKey) (*csi.VolumeSnapshot, error) {
	found := &csi.VolumeSnapshot{}
	if v.Absent {
		return nil, volumesnapshot.ErrNotInstalled
	}
	return found, K8sClient.Get(ctx, key, found)
}

// Classes reads the classes of VolumeSnapshots.
func (v VolumeSnapshots) Classes(ctx context.Context) ([]csi.VolumeSnapshotClass, error) {
	list := &csi.VolumeSnapshotClassList{}
	err := K8sClient.List(ctx, list)
	if v.Absent || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	return list.Items, err
}

// Preferred returns no preferred class.
func (VolumeSnapshots) Preferred(context.Context) (map[string]string, error) { return nil, nil }

// OnSnapshot returns nil.
func (VolumeSnapshots) OnSnapshot(func(context.Context, client.ObjectKey) []ctrl.Request) source.Source {
	return nil
}

// OnClass returns nil.
func (VolumeSnapshots) OnClass(func(context.Context) []ctrl.Request) source.Source { return nil }

// InstallVolumeSnapshots installs the kinds of Kubernetes' external-snapshotter, unless they are there.
func InstallVolumeSnapshots() {
	GinkgoHelper()
	_, err := envtest.InstallCRDs(AdminConfig, apiserver.Install(InRepository("test", "snapshotter")))
	Expect(err).NotTo(HaveOccurred())
}

// UninstallVolumeSnapshots removes the kind of VolumeSnapshots, if it is there.
func UninstallVolumeSnapshots() {
	GinkgoHelper()
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	definition.Name = "volumesnapshots.snapshot.storage.k8s.io"
	Eventually(func() bool {
		return apierrors.IsNotFound(K8sClient.Delete(ctx, definition.DeepCopy()))
	}).Should(BeTrue())
}

// PodWithClaim returns a Pod that uses a claim.
func PodWithClaim(ns, name, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "registry.example/c"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}
