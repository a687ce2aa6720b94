// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package operator

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

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
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is KubeVirt's value of ManagedByLabel.
	ManagedBy = "virt-operator"
	// ComponentLabel names the component.
	ComponentLabel = "app.kubernetes.io/component"
	// HashAnnotation contains the digest of what was applied, so that the removal of a field is detected, too.
	HashAnnotation = "operator.kubevirt.io/applied"
)

// HandlerName is the name of the node agent's DaemonSet.
const HandlerName = "virt-handler"

//go:embed manifests/*.yaml
var manifests embed.FS

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
	// HandlerFlags and APIFlags are added to the arguments of the agent and of virt-api.
	HandlerFlags, APIFlags map[string]string
	// Infra is the placement of all other components, and Replicas the number of Pods of each. Nil means DefaultReplicas.
	Infra    *v1.NodePlacement
	Replicas *uint8
	// Bundles are the certificates of the authorities of each role, as PEM.
	Bundles map[string][]byte
}

// Render returns the objects to install, in the order in which to apply them.
func Render(s Settings) ([]*unstructured.Unstructured, error) {
	if s.Config.Images.Handler == "" || s.Config.Images.Launcher == "" || s.Config.Images.API == "" {
		return nil, fmt.Errorf("the images of virt-handler, virt-launcher and virt-api are not known: " +
			"start virt-controller with --handler-image, --launcher-image and --api-image")
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

	api, err := apiObjects(s)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	// The ConfigMap has to exist before the Pods that mount it.
	for _, o := range append([]client.Object{bundles(s), service, handler}, api...) {
		u, err := Finish(o, s.Namespace)
		if err != nil {
			return nil, err
		}
		objects = append(objects, u)
	}
	return objects, nil
}

// DeploymentID identifies a rendering: two with the same value install the same. It does not depend on the certificates
// of the authorities.
func DeploymentID(objects []*unstructured.Unstructured) string {
	h := sha256.New()
	for _, o := range objects {
		if kind := o.GetKind(); kind != "ConfigMap" && kind != APIServiceKind.Kind {
			h.Write([]byte(o.GetAnnotations()[HashAnnotation]))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:20])
}

func decode[T any](file string) (*T, error) {
	raw, err := manifests.ReadFile("manifests/" + file)
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

// Finish sets an object's namespace, labels and digest, and drops the fields that only the API server sets.
func Finish(o client.Object, namespace string) (*unstructured.Unstructured, error) {
	if !clusterScoped(o) {
		o.SetNamespace(namespace)
	}
	labels := map[string]string{
		ManagedByLabel: ManagedBy, ComponentLabel: o.GetName(), "app.kubernetes.io/part-of": "kubevirt", "kubevirt.io": o.GetName(),
	}
	maps.Copy(labels, o.GetLabels())
	o.SetLabels(labels)

	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", o.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")

	return u, Stamp(u)
}

// Stamp sets the annotation with the digest of an object.
func Stamp(u *unstructured.Unstructured) error {
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return fmt.Errorf("rendering %s: %w", u.GetName(), err)
	}
	digest := sha256.Sum256(raw)
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[HashAnnotation] = hex.EncodeToString(digest[:20])
	u.SetAnnotations(annotations)
	return nil
}
