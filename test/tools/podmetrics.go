// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// podMetricsAPI is the API from which an autoscaler gets what Pods use.
const podMetricsAPI = "/apis/metrics.k8s.io/v1beta1"

// servePodMetrics serves the memory that Pods use: each of the running ones that a selector matches uses an equal part
// of a number of bytes. The Pods are read with the service account of this Pod.
func servePodMetrics(api *http.ServeMux, total *atomic.Int64) {
	api.HandleFunc("GET "+podMetricsAPI, func(w http.ResponseWriter, _ *http.Request) {
		write(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1",
			"resources": []any{
				map[string]any{"name": "pods", "singularName": "", "namespaced": true, "kind": "PodMetrics",
					"verbs": []string{"get", "list"}},
			}})
	})
	api.HandleFunc("GET "+podMetricsAPI+"/namespaces/{namespace}/pods", func(w http.ResponseWriter, r *http.Request) {
		pods, err := runningPods(r.Context(), r.PathValue("namespace"), r.URL.Query().Get("labelSelector"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		items := make([]any, 0, len(pods))
		for _, pod := range pods {
			items = append(items, map[string]any{
				"metadata": map[string]any{"namespace": pod.Namespace, "name": pod.Name, "labels": pod.Labels},
				"window":   "15s", "timestamp": time.Now().UTC().Format(time.RFC3339),
				"containers": []any{map[string]any{
					"name":  pod.Spec.Containers[0].Name,
					"usage": map[string]any{"memory": resource.NewQuantity(total.Load()/int64(len(pods)), resource.BinarySI), "cpu": "1m"},
				}},
			})
		}
		write(w, map[string]any{"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1",
			"metadata": map[string]any{}, "items": items})
	})
}

func runningPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the Pods that match %q: %w", selector, err)
	}
	running := list.Items[:0]
	for _, pod := range list.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			running = append(running, pod)
		}
	}
	return running, nil
}

func write(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}
