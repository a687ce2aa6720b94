// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package operator

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/certificate"
)

// APIName is the name of virt-api's Deployment.
const APIName = "virt-api"

// DefaultReplicas is how many Pods a component has unless the KubeVirt object sets another number. KubeVirt's value.
const DefaultReplicas = 2

// APIServiceKind is the kind that registers virt-api as the server of an API group. It is used unstructured, because its types
// would add a dependency on kube-aggregator.
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
	if *deployment.Spec.Replicas > 1 {
		budget, err := decode[policyv1.PodDisruptionBudget]("virt-api-budget.yaml")
		if err != nil {
			return nil, err
		}
		objects = append(objects, budget)
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
	d.Spec.Replicas = ptr.To(s.replicas())
	container.Image, container.ImagePullPolicy = s.Config.Images.API, s.Config.ImagePullPolicy
	pod.ImagePullSecrets = s.Config.ImagePullSecrets
	container.Args = []string{"--port", "8443", "--console-server-port", fmt.Sprint(agentapi.ConsolePort)}
	if s.Config.Images.Guestfs != "" {
		container.Args = append(container.Args, "--guestfs-image", s.Config.Images.Guestfs)
	}
	container.Args = append(container.Args, s.metricsArgs()...)
	for _, name := range slices.Sorted(maps.Keys(s.APIFlags)) {
		container.Args = append(container.Args, fmt.Sprintf("--%s=%s", strings.TrimLeft(name, "-"), s.APIFlags[name]))
	}
	placeInfra(pod, s.Infra)
}

func (s Settings) replicas() int32 {
	if s.Replicas == nil {
		return DefaultReplicas
	}
	return int32(max(*s.Replicas, 1))
}

// placeInfra adds a placement to that of a manifest. An affinity replaces the manifest's.
func placeInfra(pod *corev1.PodSpec, placement *v1.NodePlacement) {
	if placement == nil {
		return
	}
	maps.Copy(pod.NodeSelector, placement.NodeSelector)
	if placement.Affinity != nil {
		pod.Affinity = placement.Affinity
	}
	pod.Tolerations = append(pod.Tolerations, placement.Tolerations...)
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
	u.SetName(version + "." + v1.SubresourceGroupName)
	return u
}

// bundles is the ConfigMap with the certificates that the components trust.
func bundles(s Settings) client.Object {
	data := make(map[string]string, len(s.Bundles))
	for role, bundle := range s.Bundles {
		data[role] = string(bundle)
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: certificate.BundleName},
		Data:       data,
	}
}
