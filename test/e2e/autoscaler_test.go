// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// perGuest is the load for which one guest suffices.
const perGuest = 1 << 20

var (
	// externalLoad is a metric of the API external.metrics.k8s.io.
	externalLoad = autoscalingv2.MetricSpec{
		Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "load"}, Target: loadTarget,
		},
	}
	// podLoad is a metric of the API metrics.k8s.io: the memory of the Pods that the target's selector matches.
	podLoad = autoscalingv2.MetricSpec{
		Type:     autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceMemory, Target: loadTarget},
	}
	loadTarget = autoscalingv2.MetricTarget{
		Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(perGuest, resource.BinarySI),
	}
)

// serveMetrics installs a metrics API in the cluster until the spec ends. The API returns the load that was set with
// the returned function. Only one spec can use a group.
func serveMetrics(ctx context.Context, namespace, group string) (load func(guests int)) {
	GinkgoHelper()
	// The metrics API reads the Pods of its namespace.
	create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "metrics"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "default"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	})
	pod := startPeer(ctx, namespace, "metrics", "", "metrics")
	create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "metrics"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"peer": "metrics"},
			Ports: []corev1.ServicePort{{Port: 8443}}},
	})
	api := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1beta1." + group},
		"spec": map[string]any{
			"group": group, "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
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

// autoscaler returns an autoscaler for a target, with the target's name and without a stabilization window.
func autoscaler(
	namespace string, target autoscalingv2.CrossVersionObjectReference, metric autoscalingv2.MetricSpec,
) *autoscalingv2.HorizontalPodAutoscaler {
	at := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To(int32(0)),
		Policies: []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PodsScalingPolicy, Value: 10, PeriodSeconds: 15},
		}}
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: target.Name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: target,
			MinReplicas:    ptr.To(int32(1)), MaxReplicas: 8,
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: at, ScaleDown: at},
			Metrics:  []autoscalingv2.MetricSpec{metric},
		},
	}
}
