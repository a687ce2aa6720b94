// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package prometheus installs what the Prometheus operator needs to scrape the components and to alert: a
// ServiceMonitor, a PrometheusRule, and the right of Prometheus to find the components. The cluster may get or lose
// these kinds while we run.
package prometheus

import (
	"cmp"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

// Names of the objects, and the account of Prometheus unless the KubeVirt object names another. KubeVirt's values.
const (
	Name           = "prometheus-kubevirt-rules"
	RoleName       = "kubevirt-monitoring"
	DefaultAccount = "prometheus-k8s"
)

// DefaultNamespaces are where Prometheus is expected unless the KubeVirt object names a namespace: the first that
// exists. KubeVirt's values.
var DefaultNamespaces = []string{"openshift-monitoring", "monitoring"}

const group = "monitoring.coreos.com"

// kind is a kind of which there is at most one object.
type kind struct {
	schema.GroupVersionResource
	kind, name string
	// everywhere is true if the object may be in any namespace. All others are in the install namespace.
	everywhere bool
}

// kinds are in the order in which the objects are applied.
var kinds = []kind{
	{rbacv1.SchemeGroupVersion.WithResource("roles"), "Role", RoleName, false},
	{rbacv1.SchemeGroupVersion.WithResource("rolebindings"), "RoleBinding", RoleName, false},
	{schema.GroupVersionResource{Group: group, Version: "v1", Resource: "servicemonitors"}, "ServiceMonitor", Name, true},
	{schema.GroupVersionResource{Group: group, Version: "v1", Resource: "prometheusrules"}, "PrometheusRule", Name, false},
}

// definition returns the name of the kind's CustomResourceDefinition, or "" if Kubernetes has the kind.
func (k kind) definition() string {
	if k.Group != group {
		return ""
	}
	return k.Resource + "." + k.Group
}

// Settings are the inputs of the objects.
type Settings struct {
	// Rules are the settings of the rules. Their namespace is the install namespace.
	Rules rules.Settings
	// Monitor is the namespace of Prometheus, and Account its service account. If Monitor is empty, no account gets a
	// right.
	Monitor, Account string
	// ServiceMonitor is the namespace of the ServiceMonitor. Empty means Monitor, or the install namespace.
	ServiceMonitor string
	// Authorize makes Prometheus send its token to the components.
	Authorize bool
}

// render returns the objects by kind.
func render(s Settings) (map[string]*unstructured.Unstructured, error) {
	install := s.Rules.Namespace
	rule, err := prometheusRule(s.Rules)
	if err != nil {
		return nil, err
	}
	objects := []struct {
		object    client.Object
		namespace string
	}{{serviceMonitor(install, s.Authorize), cmp.Or(s.ServiceMonitor, s.Monitor, install)}, {rule, install}}
	if s.Monitor != "" {
		for _, o := range access(s) {
			objects = append(objects, struct {
				object    client.Object
				namespace string
			}{o, install})
		}
	}
	out := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		u, err := manifests.Finish(o.object, o.namespace)
		if err != nil {
			return nil, err
		}
		out[u.GetKind()] = u
	}
	return out, nil
}

// newObject returns an object of a kind without Go types.
func newObject(kind string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	u.SetName(Name)
	u.SetLabels(map[string]string{manifests.ScrapeLabel: "true", "k8s-app": "kubevirt",
		"openshift.io/cluster-monitoring": ""})
	return u
}

// serviceMonitor makes Prometheus scrape every Pod of the Services for metrics. The components sign their certificates
// by different authorities, none of which Prometheus knows. honorLabels keeps a VM's namespace.
func serviceMonitor(install string, authorize bool) *unstructured.Unstructured {
	endpoint := map[string]any{
		"port": "metrics", "scheme": "https", "honorLabels": true, "tlsConfig": map[string]any{"insecureSkipVerify": true},
	}
	if authorize {
		endpoint["bearerTokenFile"] = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	}
	return newObject("ServiceMonitor", map[string]any{
		"selector":          map[string]any{"matchLabels": map[string]any{manifests.ScrapeLabel: "true"}},
		"namespaceSelector": map[string]any{"matchNames": []any{install}},
		"endpoints":         []any{endpoint},
	})
}

func prometheusRule(s rules.Settings) (*unstructured.Unstructured, error) {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(new(rules.All(s)))
	if err != nil {
		return nil, fmt.Errorf("rendering the rules: %w", err)
	}
	return newObject("PrometheusRule", spec), nil
}

// access lets Prometheus find the Pods of the Services.
func access(s Settings) []client.Object {
	labels := map[string]string{manifests.ScrapeLabel: "true"}
	read := []string{"get", "list", "watch"}
	return []client.Object{
		&rbacv1.Role{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
			ObjectMeta: metav1.ObjectMeta{Name: RoleName, Labels: labels},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"services", "endpoints", "pods"}, Verbs: read},
				// A Prometheus that is configured to discover by EndpointSlices.
				{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
			},
		},
		&rbacv1.RoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: RoleName, Labels: labels},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: RoleName},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.Monitor,
				Name: cmp.Or(s.Account, DefaultAccount)}},
		},
	}
}
