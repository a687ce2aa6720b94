// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ExportProxyName is the name of virt-exportproxy's Deployment.
const ExportProxyName = "virt-exportproxy"

// exportProxyObjects renders virt-exportproxy, if the installation has its image.
func exportProxyObjects(s Settings) ([]client.Object, error) {
	if s.Config.Images.ExportProxy == "" {
		return nil, nil
	}
	service, err := decode[corev1.Service]("virt-exportproxy-service.yaml")
	if err != nil {
		return nil, err
	}
	deployment, err := decode[appsv1.Deployment]("virt-exportproxy.yaml")
	if err != nil {
		return nil, err
	}
	configureExportProxy(deployment, s)
	objects := []client.Object{service, deployment}
	if !s.MetricsAuthorization {
		metrics, err := decode[corev1.Service]("virt-exportproxy-metrics-service.yaml")
		if err != nil {
			return nil, err
		}
		objects = append(objects, metrics)
	}
	if replicas := *deployment.Spec.Replicas; replicas > 1 {
		objects = append(objects, budget(ExportProxyName, replicas))
	}
	return objects, nil
}

// configureExportProxy sets the fields that depend on the cluster.
func configureExportProxy(d *appsv1.Deployment, s Settings) {
	pod := &d.Spec.Template.Spec
	container := &pod.Containers[0]
	d.Spec.Replicas = ptr.To(s.replicas(DefaultReplicas))
	container.Image, container.ImagePullPolicy = s.Config.Images.ExportProxy, s.Config.ImagePullPolicy
	pod.ImagePullSecrets = s.Config.ImagePullSecrets
	container.Args = []string{"--port", "8443", "--metrics-port", "8444"}
	if s.MetricsAuthorization {
		// Clients from outside send it requests, so it has no right to review tokens. Without it, it cannot authorize
		// Prometheus.
		container.Args, container.Ports = container.Args[:2], container.Ports[:1]
	}
	placeInfra(pod, s.Infra)
}
