// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package manifests installs what the KubeVirt object specifies: it renders the embedded manifests for a
// configuration, applies them by server-side apply with one field manager, prunes what is no longer wanted
// and reports the progress of a rollout. internal/controller/install/kubevirt decides when.
package manifests

import (
	"embed"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Labels and annotations of everything that is installed.
const (
	// ManagedByLabel has the value ManagedBy, as in KubeVirt. Pruning and deletion select by it.
	ManagedByLabel = v1.ManagedByLabel
	// ManagedBy is KubeVirt's value of ManagedByLabel.
	ManagedBy = v1.ManagedByLabelOperatorValue
	// HashAnnotation contains the digest of what was applied, so that the removal of a field is detected, too.
	HashAnnotation = "operator.kubevirt.io/applied"
	// VersionAnnotation and RegistryAnnotation are the tag and the registry of the components' images. KubeVirt's names.
	VersionAnnotation  = "kubevirt.io/install-strategy-version"
	RegistryAnnotation = "kubevirt.io/install-strategy-registry"
	// IdentifierAnnotation identifies what was installed. On an object it is the DeploymentID. On a Pod it is the digest
	// of its template, so that only those Pods are replaced whose template has changed; KubeVirt replaces all. KubeVirt's
	// name.
	IdentifierAnnotation = "kubevirt.io/install-strategy-identifier"
	// ScrapeLabel is on everything that belongs to the metrics of the components: Prometheus scrapes the Services that
	// have it, and the Service of the metrics selects the Pods that have it. KubeVirt's name.
	ScrapeLabel = "prometheus.kubevirt.io"
)

// Names of the DaemonSets of the node agent: BrokerName is that of its privileged half.
const (
	HandlerName = "virt-handler"
	BrokerName  = "virt-broker"
)

//go:embed templates/*.yaml
var templates embed.FS

// Settings are the inputs of the manifests.
type Settings struct {
	// Namespace is the install namespace.
	Namespace string
	// KubeletRoot is the kubelet's root directory on the nodes.
	KubeletRoot string
	// Config is the cluster's configuration.
	Config clusterconfig.Config
	// Workloads is the placement of components on the nodes of guests.
	Workloads *v1.NodePlacement
	// MetricsAuthorization restricts the metrics to clients that may get the URL /metrics.
	MetricsAuthorization bool
	// Infra is the placement of all other components, and Replicas the number of Pods of each. Nil means the defaults.
	Infra    *v1.NodePlacement
	Replicas *uint8
	// Nodes is the number of nodes that accept guests.
	Nodes int
	// ControllerReplicas is the number of Pods of virt-controller.
	ControllerReplicas int32
	// Labels are the product's labels of all objects and Pods.
	Labels map[string]string
	// Customize has the patches of objects and additional flags of components.
	Customize v1.CustomizeComponents
	// Bundles are the certificates of the authorities of each role, as PEM.
	Bundles map[string][]byte
}

// SettingsOf returns the settings that a KubeVirt object's spec and the configuration that is resolved from it
// determine. Labels of the product that are not valid are left out.
func SettingsOf(spec *v1.KubeVirtSpec, config clusterconfig.Config) Settings {
	s := Settings{Config: config, Customize: spec.CustomizeComponents}
	s.Labels, _ = ProductLabels(spec)
	if spec.Workloads != nil {
		s.Workloads = spec.Workloads.NodePlacement
	}
	if spec.Infra != nil {
		s.Infra, s.Replicas = spec.Infra.NodePlacement, spec.Infra.Replicas
	}
	return s
}

// Render returns the objects to install, in the order in which to apply them. If patches of some objects cannot be
// applied, it returns the other objects, and an error that joins a PatchError for each. With any other error it returns
// no objects.
func Render(s Settings) ([]*unstructured.Unstructured, error) {
	rendered, err := renderAll(s)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	var refused []error
	for _, o := range rendered {
		u, err := finish(o, s)
		var patch *PatchError
		if errors.As(err, &patch) {
			refused = append(refused, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		objects = append(objects, u)
	}
	id := identify(objects, s)
	for _, o := range objects {
		annotate(o, map[string]string{IdentifierAnnotation: id})
	}
	return objects, errors.Join(refused...)
}

func renderAll(s Settings) ([]client.Object, error) {
	if images := s.Config.Images; images.Handler == "" || images.Broker == "" || images.Launcher == "" ||
		images.API == "" {
		return nil, fmt.Errorf("the images of virt-handler, virt-broker, virt-launcher and virt-api are not known: " +
			"start virt-controller with --handler-image, --broker-image, --launcher-image and --api-image")
	}
	service, err := decode[corev1.Service]("metrics-service.yaml")
	if err != nil {
		return nil, err
	}
	handler, err := decode[appsv1.DaemonSet]("virt-handler.yaml")
	if err != nil {
		return nil, err
	}
	configureHandler(handler, s)
	broker, err := decode[appsv1.DaemonSet]("virt-broker.yaml")
	if err != nil {
		return nil, err
	}
	configureBroker(broker, s)
	api, err := apiObjects(s)
	if err != nil {
		return nil, err
	}
	proxy, err := exportProxyObjects(s)
	if err != nil {
		return nil, err
	}
	// The ConfigMap has to exist before the Pods that mount it.
	objects := slices.Concat([]client.Object{bundles(s), service, broker, handler}, api, proxy)
	if s.ControllerReplicas > 1 {
		objects = append(objects, budget(ControllerName, s.ControllerReplicas))
	}
	return objects, nil
}

// DeploymentID identifies what is installed with these settings: two with the same value install the same Pods and
// Services. It does not depend on the authorities' certificates, nor on the number of nodes and of Pods.
func DeploymentID(s Settings) (string, error) {
	objects, err := Render(s)
	if objects == nil {
		return "", err
	}
	return IdentifierOf(objects), nil
}

// IdentifierOf returns the DeploymentID of rendered objects.
func IdentifierOf(objects []*unstructured.Unstructured) string {
	return objects[0].GetAnnotations()[IdentifierAnnotation]
}

// identify returns the DeploymentID of rendered objects.
func identify(objects []*unstructured.Unstructured, s Settings) string {
	// virt-controller's own Deployment is not rendered: what changes it is here.
	parts := []any{s.Config.ImagePullPolicy, s.Config.ImagePullSecrets, s.Infra, s.Labels, s.Customize}
	for _, o := range objects {
		switch kind := o.GetKind(); kind {
		case "DaemonSet", "Deployment":
			o = o.DeepCopy()
			unstructured.RemoveNestedField(o.Object, "spec", "replicas")
			parts = append(parts, o.GetName(), o.Object["spec"])
		case "Service":
			parts = append(parts, o.GetAnnotations()[HashAnnotation])
		}
	}
	return digest(append(parts, s.Replicas))
}

func decode[T any](file string) (*T, error) {
	raw, err := templates.ReadFile("templates/" + file)
	if err != nil {
		return nil, fmt.Errorf("embedded manifest: %w", err)
	}
	object := new(T)
	if err := yaml.UnmarshalStrict(raw, object); err != nil {
		return nil, fmt.Errorf("embedded manifest %s: %w", file, err)
	}
	return object, nil
}

// clusterScoped reports whether an object belongs to no namespace.
func clusterScoped(o client.Object) bool {
	return o.GetObjectKind().GroupVersionKind().GroupKind() == APIServiceKind.GroupKind()
}

// finish patches an object, sets its namespace, labels and annotations, and drops the fields that only the API server
// sets.
func finish(o client.Object, s Settings) (*unstructured.Unstructured, error) {
	if err := customize(o, s.Customize.Patches); err != nil {
		return nil, err
	}
	if !clusterScoped(o) {
		o.SetNamespace(s.Namespace)
	}
	registry, _, tag := clusterconfig.SplitImage(s.Config.Images.Handler)
	strategy := map[string]string{VersionAnnotation: tag, RegistryAnnotation: registry}
	o.SetLabels(labelsOf(o.GetName(), o.GetLabels(), s.Labels))
	annotate(o, strategy)
	if template := podTemplate(o); template != nil {
		template.Labels = productLabels(template.Labels, s.Labels)
		template.Annotations = mergeMaps(template.Annotations, strategy)
		template.Annotations[IdentifierAnnotation] = digest(template)
	}
	return finished(o)
}

// Finish sets the namespace, the labels and the digest of an object that is not part of Render's, and drops the fields
// that only the API server sets.
func Finish(o client.Object, namespace string) (*unstructured.Unstructured, error) {
	if !clusterScoped(o) {
		o.SetNamespace(namespace)
	}
	o.SetLabels(mergeMaps(labelsOf(o.GetName(), nil, nil), o.GetLabels()))
	return finished(o)
}

// finished converts an object, drops the fields that only the API server sets, and sets the digest.
func finished(o client.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", o.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
	Stamp(u)
	return u, nil
}

// Stamp sets the annotation with the digest of an object.
func Stamp(u *unstructured.Unstructured) {
	annotate(u, map[string]string{HashAnnotation: digest(u.Object)})
}

// podTemplate returns the template of an object's Pods, or nil.
func podTemplate(o client.Object) *corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *appsv1.Deployment:
		return &o.Spec.Template
	}
	return nil
}
