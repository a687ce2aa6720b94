// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
)

// Install installs what the object specifies. An authority that cannot be rotated does not block the rest.
func Install(ctx context.Context, s *Scope) error {
	bundles, recheck, notRotated := authorities(ctx, s)
	s.RecheckAt = recheck
	notRotated = errors.Join(notRotated, checkPendingRequests(ctx, s))
	if bundles == nil {
		return notRotated
	}
	if err := install(ctx, s, bundles); err != nil {
		return errors.Join(notRotated, err)
	}
	return errors.Join(notRotated, checkMissingRequests(ctx, s), monitor(ctx, s))
}

// monitor installs the objects for Prometheus. It comes last: guests run without them.
func monitor(ctx context.Context, s *Scope) error {
	if s.Monitoring == nil {
		return nil
	}
	return s.Monitoring.Apply(ctx, &s.KubeVirt.Spec)
}

// install applies what is to be applied now. A patch that fails blocks the rollout, and not the rotation of
// certificates.
func install(ctx context.Context, s *Scope, bundles map[string][]byte) error {
	observed, err := observeCluster(ctx, s)
	if err != nil {
		return err
	}
	settings := settings(s, bundles)
	settings.Nodes, settings.ControllerReplicas = observed.schedulable, observed.controllerReplicas()
	objects, refused := manifests.Render(settings)
	if objects == nil {
		return refused
	}
	s.DeploymentID, s.ControllerImage = manifests.IdentifierOf(objects), observed.controller.image()
	components, others := split(objects)
	if s.Generations, err = s.installer().Apply(ctx, others...); err != nil {
		return errors.Join(refused, err)
	}
	if err := rollOut(ctx, s, observed, components); err != nil {
		return errors.Join(refused, err)
	}
	if err := s.installer().Prune(ctx, objects, refused); err != nil {
		return errors.Join(refused, err)
	}
	return refused
}

// split separates the objects with Pods from the others, which need no order.
func split(
	objects []*unstructured.Unstructured,
) (components map[string]*unstructured.Unstructured, others []*unstructured.Unstructured) {
	components = map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		if kind := o.GetKind(); kind == "DaemonSet" || kind == "Deployment" {
			components[o.GetName()] = o
			continue
		}
		others = append(others, o)
	}
	return components, others
}

// DeploymentID identifies what is to be installed for the scope's object. It becomes status.targetDeploymentID.
func DeploymentID(s *Scope) (string, error) {
	// It does not depend on the authorities, nor on the number of nodes.
	return manifests.DeploymentID(settings(s, nil))
}

func settings(s *Scope, bundles map[string][]byte) manifests.Settings {
	settings := manifests.SettingsOf(&s.KubeVirt.Spec, s.Config)
	settings.Namespace, settings.KubeletRoot, settings.Bundles = s.Namespace, s.KubeletRoot, bundles
	settings.MetricsAuthorization = s.MetricsAuthorization
	return settings
}

// cluster is what an installation depends on besides its own objects.
type cluster struct {
	// schedulable is the number of nodes that accept guests.
	schedulable int
	// lost are the nodes whose kubelet does not respond.
	lost map[string]bool
	// controller is virt-controller's own Deployment. It is nil if virt-controller runs without one.
	controller *controllerDeployment
}

func observeCluster(ctx context.Context, s *Scope) (*cluster, error) {
	nodes := &corev1.NodeList{}
	if err := s.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list nodes: %w", err)
	}
	found := &cluster{lost: map[string]bool{}}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if node.Labels[v1.NodeSchedulable] == "true" {
			found.schedulable++
		}
		if isLost(node) {
			found.lost[node.Name] = true
		}
	}
	var err error
	found.controller, err = findController(ctx, s)
	return found, err
}

// isLost reports whether a node's kubelet does not respond. The taint is that of Kubernetes' node controller.
func isLost(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
}

// controllerReplicas returns how many Pods virt-controller has.
func (c *cluster) controllerReplicas() int32 {
	if c.controller == nil || c.controller.desired.Spec.Replicas == nil {
		return 0
	}
	return *c.controller.desired.Spec.Replicas
}
