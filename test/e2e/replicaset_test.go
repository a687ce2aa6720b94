// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// makeReplicaSet returns a set of small guests.
func makeReplicaSet(namespace, name string, replicas int32) *v1.VirtualMachineInstanceReplicaSet {
	set := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	set.Spec.Replicas = ptr.To(replicas)
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"vm": name}}
	set.Spec.Template = makeVM(namespace, name).Spec.Template
	return set
}

// expectReplicas waits until a set has n VMIs, all of them ready, and returns them.
func expectReplicas(ctx context.Context, set *v1.VirtualMachineInstanceReplicaSet, n int) []v1.VirtualMachineInstance {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceList{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
		g.Expect(set.Status.Replicas).To(BeEquivalentTo(n))
		g.Expect(set.Status.ReadyReplicas).To(BeEquivalentTo(n))
		g.Expect(set.Status.Conditions).To(BeEmpty())
		g.Expect(k8s.List(ctx, list, client.InNamespace(set.Namespace))).To(Succeed())
		g.Expect(list.Items).To(HaveLen(n))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	return list.Items
}

var _ = Describe("A replica set", func() {
	It("is scaled to 6 guests and back by its autoscaler, replaces a guest that ended, and is deleted without its guests", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		set := makeReplicaSet(namespace, "web", 1)
		create(ctx, set)
		first := expectReplicas(ctx, set, 1)[0]

		By("replacing a guest whose Pod is deleted")
		Expect(k8s.Delete(ctx, launcherPod(ctx, &first))).To(Succeed())
		expectGone(ctx, first.DeepCopy())
		second := expectReplicas(ctx, set, 1)[0]
		Expect(second.Name).NotTo(Equal(first.Name), "it is created before the old one is removed")

		By("scaling up")
		load := fakeMetrics(ctx, namespace)
		load(6)
		create(ctx, autoscaler(set))
		six := expectReplicas(ctx, set, 6)
		names := map[string]bool{}
		for i := range six {
			names[six[i].Name] = true
		}
		Expect(names).To(HaveKey(second.Name))

		By("scaling down")
		load(1)
		last := expectReplicas(ctx, set, 1)[0]
		Expect(last.Name).To(Equal(second.Name), "the newest of equal VMIs are deleted first")

		By("keeping its guest when it is deleted with propagation policy Orphan")
		Expect(k8s.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
		expectGone(ctx, set)
		Consistently(func() *v1.VirtualMachineInstance { return vmi(ctx, namespace, last.Name) }).
			WithContext(ctx).WithTimeout(5 * time.Second).WithPolling(pollInterval).
			Should(And(HaveField("DeletionTimestamp", BeNil()), HaveField("OwnerReferences", BeEmpty()), HaveField("UID", last.UID)))
	}, SpecTimeout(15*time.Minute))
})

// fakeMetrics installs a metrics API in the cluster that returns the load set with the returned function.
func fakeMetrics(ctx context.Context, namespace string) (load func(int)) {
	GinkgoHelper()
	pod := startPeer(ctx, namespace, "metrics", "", "metrics")
	create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "metrics"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"peer": "metrics"}, Ports: []corev1.ServicePort{{Port: 8443}}},
	})
	api := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1beta1.external.metrics.k8s.io"},
		"spec": map[string]any{
			"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true,
			"service":               map[string]any{"namespace": namespace, "name": "metrics", "port": int64(8443)},
		},
	}}
	create(ctx, api)
	DeferCleanup(func(ctx context.Context) {
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, api))).To(Succeed())
	})
	return func(guests int) {
		GinkgoHelper()
		expectExec(ctx, pod, shortTimeout, ContainSubstring("SET"),
			"/tools", "get", "http://127.0.0.1:8080/set/"+strconv.Itoa(guests*perGuest))
	}
}

// perGuest is the load for which one guest is enough.
const perGuest = 100

// autoscaler returns an autoscaler for a set, without a stabilization window.
func autoscaler(set *v1.VirtualMachineInstanceReplicaSet) *autoscalingv2.HorizontalPodAutoscaler {
	at := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To(int32(0)), Policies: []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PodsScalingPolicy, Value: 10, PeriodSeconds: 15},
	}}
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: set.Name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: v1.GroupVersion.String(), Kind: v1.VirtualMachineInstanceReplicaSetGroupVersionKind.Kind, Name: set.Name,
			},
			MinReplicas: ptr.To(int32(1)), MaxReplicas: 8,
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: at, ScaleDown: at},
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ExternalMetricSourceType,
				External: &autoscalingv2.ExternalMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "load"},
					Target: autoscalingv2.MetricTarget{
						Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(perGuest, resource.DecimalSI),
					},
				},
			}},
		},
	}
}
