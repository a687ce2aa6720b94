// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/cdi/v1beta1"
)

// importerLabel marks the CustomResourceDefinitions of the stand-in.
const importerLabel = "vireo-e2e-importer"

// startImporter runs a stand-in for the Containerized Data Importer in a namespace until the spec ends. It creates the
// claims of DataVolumes, and fills those that are copies with the small guest's disk. The CustomResourceDefinitions are
// kept until the suite ends, because parallel specs use them. On a cluster with the importer itself, it does nothing.
func startImporter(ctx context.Context, namespace string) {
	GinkgoHelper()
	if hasImporter(ctx) {
		return
	}
	paths, err := filepath.Glob(filepath.Join("..", "importer", "*.yaml"))
	Expect(err).NotTo(HaveOccurred())
	Expect(paths).NotTo(BeEmpty())
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		Expect(err).NotTo(HaveOccurred())
		crd := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal(raw, &crd.Object)).To(Succeed())
		crd.SetLabels(map[string]string{importerLabel: ""})
		if err := k8s.Create(ctx, crd); !apierrors.IsAlreadyExists(err) {
			Expect(err).NotTo(HaveOccurred())
			continue
		}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(crd), crd)).To(Succeed())
		if _, labeled := crd.GetLabels()[importerLabel]; !labeled {
			Skip("the cluster has the kinds of an importer, but no importer")
		}
	}
	list := func(ctx context.Context) (*cdi.DataVolumeList, error) {
		found := &cdi.DataVolumeList{}
		return found, k8s.List(ctx, found, client.InNamespace(namespace))
	}
	Eventually(list).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).ShouldNot(BeNil())

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			found, err := list(ctx)
			for i := 0; err == nil && i < len(found.Items); i++ {
				err = importVolume(ctx, &found.Items[i])
			}
			if err != nil && ctx.Err() == nil {
				GinkgoWriter.Printf("importer: %v\n", err)
			}
		}, pollInterval)
	}()
	DeferCleanup(func() {
		cancel()
		<-done
	})
}

// hasImporter reports whether the cluster has the importer itself: an object for its operator, for which the stand-in
// has no kind.
func hasImporter(ctx context.Context) bool {
	GinkgoHelper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(cdi.GroupVersion.WithKind("CDIList"))
	err := k8s.List(ctx, list)
	if meta.IsNoMatchError(err) {
		return false
	}
	Expect(err).NotTo(HaveOccurred())
	return len(list.Items) > 0
}

// expectGolden fills a claim with the small guest's disk, from which the importer makes copies. The stand-in does not
// read it.
func expectGolden(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	if !hasImporter(ctx) {
		return
	}
	claim := &corev1.PersistentVolumeClaim{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)).To(Succeed())
	Eventually(fillClaim).WithArguments(ctx, claim).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(BeTrue())
}

var _ = SynchronizedAfterSuite(func() {}, func(ctx context.Context) {
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	Expect(k8s.DeleteAllOf(ctx, crd, client.HasLabels{importerLabel})).To(Succeed())
}, nodeTimeout(time.Minute))

// importVolume creates and fills the claim of a DataVolume, and reports it in the status.
func importVolume(ctx context.Context, dv *cdi.DataVolume) error {
	if dv.Status.Phase == cdi.DataVolumeSucceeded || dv.DeletionTimestamp != nil {
		return nil
	}
	// Package cdi decodes only a part of the spec.
	object, desired := &unstructured.Unstructured{}, struct {
		Spec v1beta1.DataVolumeSpec `json:"spec"`
	}{}
	object.SetGroupVersionKind(cdi.GroupVersion.WithKind("DataVolume"))
	if err := k8s.Get(ctx, client.ObjectKeyFromObject(dv), object); err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &desired); err != nil {
		return err
	}
	claim := makeClaim(dv.Namespace, dv.Name, corev1.PersistentVolumeFilesystem)
	claim.Spec.Resources = desired.Spec.Storage.Resources
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))}
	if err := k8s.Create(ctx, claim); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create claim %s: %w", claim.Name, err)
	}
	if dv.Spec.Source.Blank == nil {
		if filled, err := fillClaim(ctx, claim); err != nil || !filled {
			return err
		}
	}
	changed := dv.DeepCopy()
	changed.Status.Phase = cdi.DataVolumeSucceeded
	return k8s.Status().Patch(ctx, changed, client.MergeFrom(dv))
}

// fillClaim runs a Pod that writes the small guest's disk to a claim, and reports whether it has finished.
func fillClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: "import-" + claim.Name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyOnFailure,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(107)), FSGroup: ptr.To(int64(107)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "import", Image: image("virt-launcher"), ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"qemu-img", "convert", "-O", "raw", "/image/disk/guest-small.qcow2", "/claim/disk.img"},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "image", MountPath: "/image", ReadOnly: true}, {Name: "claim", MountPath: "/claim"},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
					Reference: image("guest-small"), PullPolicy: corev1.PullIfNotPresent,
				}}},
				{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: claim.Name,
				}}},
			},
		},
	}
	if err := k8s.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("create Pod %s: %w", pod.Name, err)
	}
	if err := k8s.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		return false, fmt.Errorf("get Pod %s: %w", pod.Name, err)
	}
	return pod.Status.Phase == corev1.PodSucceeded, nil
}
