// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// APIName is the name of virt-api's Deployment.
const APIName = "virt-api"

const (
	// DefaultReplicas is how many Pods a component has at least unless the KubeVirt object sets another number. KubeVirt's
	// value.
	DefaultReplicas = 2
	// nodesPerAPI is the number of nodes for each of virt-api's Pods. KubeVirt's value.
	nodesPerAPI = 10
)

// APIServiceKind is the kind that registers virt-api as the server of an API group. It is used unstructured, because
// its types would add a dependency on kube-aggregator.
var APIServiceKind = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}

// Priorities of the group among groups, and of each version within it. KubeVirt's values.
const groupPriority, versionPriority = 1000, 15

// apiObjects renders virt-api and the objects that route requests to it.
func apiObjects(s Settings) ([]client.Object, error) {
	service, err := decode[corev1.Service]("virt-api-service.yaml")
	if err != nil {
		return nil, err
	}
	deployment, err := decode[appsv1.Deployment]("virt-api.yaml")
	if err != nil {
		return nil, err
	}
	configureAPI(deployment, s)
	objects := []client.Object{service, deployment}
	if replicas := *deployment.Spec.Replicas; replicas > 1 {
		objects = append(objects, budget(APIName, replicas))
	}
	for _, version := range v1.SubresourceVersions {
		objects = append(objects, apiService(version, s))
	}
	return objects, nil
}

// configureAPI sets the fields that depend on the cluster.
func configureAPI(d *appsv1.Deployment, s Settings) {
	pod := &d.Spec.Template.Spec
	container := &pod.Containers[0]
	d.Spec.Replicas = ptr.To(s.replicas(apiReplicas(s.Nodes)))
	container.Image, container.ImagePullPolicy = s.Config.Images.API, s.Config.ImagePullPolicy
	pod.ImagePullSecrets = s.Config.ImagePullSecrets
	container.Args = []string{"--port", "8443", "--console-server-port", fmt.Sprint(agentapi.ConsolePort)}
	if s.Config.Images.Guestfs != "" {
		container.Args = append(container.Args, "--guestfs-image", s.Config.Images.Guestfs)
	}
	container.Args = append(container.Args, s.metricsArgs()...)
	if s.Customize.Flags != nil {
		container.Args = append(container.Args, flagArgs(s.Customize.Flags.API)...)
	}
	placeInfra(pod, s.Infra)
}

// apiReplicas returns the number of virt-api's Pods in a cluster with several nodes, with which it grows. KubeVirt's
// numbers.
func apiReplicas(nodes int) int32 {
	return max(DefaultReplicas, int32(min(nodes, 10*math.MaxUint8)/nodesPerAPI))
}

// replicas returns the number of a component's Pods: as many as the KubeVirt object says, one on a single node,
// otherwise the default.
func (s Settings) replicas(byDefault int32) int32 {
	switch {
	case s.Replicas != nil:
		return int32(max(*s.Replicas, 1))
	case s.Nodes == 1:
		return 1
	default:
		return byDefault
	}
}

// budget keeps all but one of a component's Pods running while nodes are drained. KubeVirt's name and number.
func budget(component string, replicas int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: metav1.ObjectMeta{Name: component + "-pdb"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(replicas - 1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{v1.AppLabel: component}},
		},
	}
}

// apiService makes the API server forward a version of the group to virt-api and verify its certificate.
func apiService(version string, s Settings) client.Object {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": v1.SubresourceGroupName, "version": version,
		"groupPriorityMinimum": int64(groupPriority), "versionPriority": int64(versionPriority),
		"service":  map[string]any{"namespace": s.Namespace, "name": agentapi.ServiceName, "port": int64(443)},
		"caBundle": base64.StdEncoding.EncodeToString(s.Bundles[certificate.APIServing.Name]),
	}}}
	u.SetGroupVersionKind(APIServiceKind)
	u.SetName(apiServiceName(version))
	return u
}

func apiServiceName(version string) string { return version + "." + v1.SubresourceGroupName }

// APIServiceBundles returns the certificates with which the API server verifies virt-api, as PEM, of each version that
// is registered.
func APIServiceBundles(ctx context.Context, reader client.Reader) ([][]byte, error) {
	var bundles [][]byte
	for _, version := range v1.SubresourceVersions {
		service := &unstructured.Unstructured{}
		service.SetGroupVersionKind(APIServiceKind)
		err := reader.Get(ctx, client.ObjectKey{Name: apiServiceName(version)}, service)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read APIService %q: %w", apiServiceName(version), err)
		}
		encoded, _, err := unstructured.NestedString(service.Object, "spec", "caBundle")
		if err != nil {
			return nil, fmt.Errorf("APIService %q: %w", service.GetName(), err)
		}
		bundle, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, fmt.Errorf("the caBundle of APIService %q: %w", service.GetName(), err)
		}
		bundles = append(bundles, bundle)
	}
	return bundles, nil
}

// bundles is the ConfigMap with the certificates that the components trust, and those for users of virt-exportproxy.
func bundles(s Settings) client.Object {
	data := make(map[string]string, len(s.Bundles)+1)
	for role, bundle := range s.Bundles {
		data[role] = string(bundle)
	}
	if bundle, known := s.Bundles[certificate.ExportProxyServing.Name]; known {
		data[certificate.PublicBundle] = string(bundle)
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: certificate.BundleName},
		Data:       data,
	}
}

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

// ControllerName is the name of virt-controller's Deployment, which `make deploy` or a chart installs.
const ControllerName = "virt-controller"

// ConfigureController changes virt-controller's Deployment, as it was installed, to what the KubeVirt object specifies.
// What the object does not specify stays.
func ConfigureController(d *appsv1.Deployment, spec *v1.KubeVirtSpec, s Settings) error {
	pod := &d.Spec.Template.Spec
	at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == ControllerName })
	if at >= 0 {
		container := &pod.Containers[at]
		container.Image = clusterconfig.Image(container.Image, spec)
		if s.Config.ImagePullPolicy != "" {
			container.ImagePullPolicy = s.Config.ImagePullPolicy
		}
		if s.Customize.Flags != nil {
			container.Args = append(container.Args, flagArgs(s.Customize.Flags.Controller)...)
		}
	}
	for _, secret := range s.Config.ImagePullSecrets {
		if !slices.Contains(pod.ImagePullSecrets, secret) {
			pod.ImagePullSecrets = append(pod.ImagePullSecrets, secret)
		}
	}
	placeInfra(pod, s.Infra)
	if s.Replicas != nil {
		d.Spec.Replicas = ptr.To(int32(max(*s.Replicas, 1)))
	}
	if len(s.Labels) > 0 {
		d.Labels = mergeMaps(d.Labels, s.Labels)
		d.Spec.Template.Labels = mergeMaps(d.Spec.Template.Labels, s.Labels)
	}
	d.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err := customize(d, s.Customize.Patches); err != nil {
		return err
	}
	// By this label it is found.
	d.Labels = mergeMaps(d.Labels, map[string]string{v1.AppLabel: ControllerName})
	return nil
}
