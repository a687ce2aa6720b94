// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// TestPodsInCache checks that what is read of a launcher Pod is the same in the cache, and that most of the Pod is not
// there.
func TestPodsInCache(t *testing.T) {
	g := NewWithT(t)
	claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}
	full := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-vm", Labels: map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}},
		Spec: corev1.PodSpec{
			NodeName: "node", NodeSelector: map[string]string{"c": "d"}, Tolerations: []corev1.Toleration{{Key: "e"}},
			Containers: []corev1.Container{{
				Name: launcherpod.ComputeContainer, Image: "launcher:v1", Env: []corev1.EnvVar{{Name: "f"}},
				VolumeMounts: []corev1.VolumeMount{{Name: "g"}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"),
						"devices.kubevirt.io/tun": resource.MustParse("1")},
					Limits: corev1.ResourceList{"devices.kubevirt.io/tun": resource.MustParse("1")},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: launcherpod.StateVolume, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}},
				{Name: "h", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: launcherpod.ComputeContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
	object, err := transformPod(full.DeepCopy())
	g.Expect(err).NotTo(HaveOccurred())
	kept, ok := object.(*corev1.Pod)
	g.Expect(ok).To(BeTrue())
	g.Expect(podstate.Running(kept)).To(BeTrue())
	g.Expect(podspec.LauncherImage(kept)).To(Equal("launcher:v1"))
	g.Expect(podspec.StateClaim(kept)).To(Equal("disk"))
	g.Expect(kept.Spec).To(Equal(corev1.PodSpec{
		NodeName: "node", NodeSelector: full.Spec.NodeSelector, Volumes: full.Spec.Volumes[:1],
		Containers: []corev1.Container{{Name: launcherpod.ComputeContainer, Image: "launcher:v1",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
			}}},
	}))
	full.ManagedFields, full.Spec = nil, kept.Spec
	g.Expect(kept).To(Equal(full))
}

// TestNamespacesInCache checks that the cache keeps only the name and the labels of a namespace.
func TestNamespacesInCache(t *testing.T) {
	g := NewWithT(t)
	full := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "n", ResourceVersion: "1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"big": "x"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
	kept, err := transformNamespace(full)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kept).To(Equal(
		&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1",
			Labels: map[string]string{"a": "b"}}}))
	for kind := range cacheOptions("kubevirt").ByObject {
		if _, is := kind.(*corev1.Namespace); is {
			return
		}
	}
	t.Error("the cache does not use it")
}

// TestQuotasInCache checks that the cache keeps the usage of a quota, which decides whether guests can be migrated.
func TestQuotasInCache(t *testing.T) {
	g := NewWithT(t)
	memory := corev1.ResourceList{corev1.ResourceRequestsMemory: resource.MustParse("1Gi")}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: memory},
		Status: corev1.ResourceQuotaStatus{Hard: memory, Used: memory},
	}
	options := cacheOptions("kubevirt")
	transform := options.DefaultTransform
	for kind, by := range options.ByObject {
		if _, is := kind.(*corev1.ResourceQuota); is && by.Transform != nil {
			transform = by.Transform
		}
	}
	g.Expect(transform(quota.DeepCopy())).To(Equal(quota))
}

func podWarning(name, pod, reason string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name,
			Annotations: map[string]string{"big": "x"}},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: pod, UID: "u"},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: "why", LastTimestamp: metav1.Now(),
	}
}

// TestEventsInCache checks that the cache excludes frequent events, and keeps the contents only of those about launcher
// Pods.
func TestEventsInCache(t *testing.T) {
	g := NewWithT(t)
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	rights.AuditTest(t, environment, root, t.Name())
	config := startAPIServer(t, environment)
	c, err := client.New(config, client.Options{Scheme: NewScheme()})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = rights.Ship(t.Context(), root, c)
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range []*corev1.Event{
		podWarning("ours", "virt-launcher-vm-1", "FailedMount"),
		podWarning("theirs", "web-1", "FailedMount"),
		podWarning("frequent", "virt-launcher-vm-1", "FailedScheduling"),
	} {
		g.Expect(c.Create(t.Context(), e)).To(Succeed())
	}

	options := cacheOptions("kubevirt")
	options.Scheme = NewScheme()
	events, err := cache.New(rights.Controller.Impersonate(config, nil), options)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- events.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	list := &corev1.EventList{}
	listCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = events.GetInformer(listCtx, &corev1.Event{}, cache.BlockUntilSynced(false))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(events.WaitForCacheSync(listCtx)).To(BeTrue())
	g.Expect(events.List(listCtx, list, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	messages := map[string]string{}
	for _, e := range list.Items {
		messages[e.Name] = e.Message
		g.Expect(e.Annotations).To(BeEmpty())
	}
	g.Expect(messages).To(Equal(map[string]string{"ours": "why", "theirs": ""}))
}
