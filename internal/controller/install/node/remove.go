// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node

import (
	"context"
	"fmt"
	"maps"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// RemoveAll deletes the Leases and the reports of all agents, and removes from all Nodes what Apply sets. It is called
// when Vireo is uninstalled and no agent runs any more: the Reconciler would do the same for each Node whose Lease is
// deleted, but the process may stop earlier.
func RemoveAll(ctx context.Context, c client.Client, namespace string) error {
	for _, list := range []client.ObjectList{&coordinationv1.LeaseList{}, &corev1.ConfigMapList{}} {
		agents := client.MatchingLabels{v1.AppLabel: agentapi.LabelValue}
		if err := c.List(ctx, list, client.InNamespace(namespace), agents); err != nil {
			return fmt.Errorf("cannot list what the agents published: %w", err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			o, ok := item.(client.Object)
			if !ok || len(OfAgent(ctx, o)) == 0 {
				return nil
			}
			return client.IgnoreNotFound(c.Delete(ctx, o))
		})
		if err != nil {
			return fmt.Errorf("cannot delete what an agent published: %w", err)
		}
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := c.List(ctx, nodes); err != nil {
		return fmt.Errorf("cannot list Nodes: %w", err)
	}
	for i := range nodes.Items {
		if err := write(ctx, c, nodes.Items[i].DeepCopy(), State{}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// write applies the state of a Node's agent to the Node, also in memory. If nothing changes, it writes nothing.
func write(ctx context.Context, c client.Client, node *metav1.PartialObjectMetadata, s State) error {
	before := node.DeepCopy()
	Apply(&node.ObjectMeta, s)
	if maps.Equal(before.Labels, node.Labels) && maps.Equal(before.Annotations, node.Annotations) {
		return nil
	}
	if err := c.Patch(ctx, node, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("cannot write Node %q: %w", node.Name, err)
	}
	return nil
}
