// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/operator"
)

// Install makes the cluster have what the object asks for.
func Install(ctx context.Context, s *Scope) error {
	objects, err := operator.Render(operator.Settings{
		Namespace:    s.Namespace,
		KubeletRoot:  s.KubeletRoot,
		Config:       s.Config,
		Workloads:    placement(s.KubeVirt.Spec.Workloads),
		HandlerFlags: handlerFlags(s.KubeVirt.Spec.CustomizeComponents),
	})
	if err != nil {
		return err
	}
	s.DeploymentID = operator.DeploymentID(objects)
	if s.Generations, err = s.installer().Apply(ctx, objects); err != nil {
		return err
	}
	if err := s.installer().Prune(ctx, objects); err != nil {
		return err
	}
	return observe(ctx, s)
}

// observe reads the rollout. Right after the DaemonSet was applied the cache may not have it: its event
// brings the next reconcile.
func observe(ctx context.Context, s *Scope) error {
	ds := &appsv1.DaemonSet{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: operator.HandlerName}, ds)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot read DaemonSet %q: %w", operator.HandlerName, err)
	case apierrors.IsNotFound(err) || stale(ds, s.Generations):
		s.Rollout = operator.Rollout{Message: "DaemonSet " + operator.HandlerName + " was just applied"}
		return nil
	}
	s.Agents, s.Rollout = ds, operator.RolloutOf(ds)
	return nil
}

// stale says that the cache is behind what was just applied.
func stale(ds *appsv1.DaemonSet, applied []v1.GenerationStatus) bool {
	for _, g := range applied {
		if g.Resource == "daemonsets" && g.Name == ds.Name {
			return ds.Generation < g.LastGeneration || ds.Annotations[operator.HashAnnotation] != g.Hash
		}
	}
	return false
}

func placement(c *v1.ComponentConfig) *v1.NodePlacement {
	if c == nil {
		return nil
	}
	return c.NodePlacement
}

func handlerFlags(c v1.CustomizeComponents) map[string]string {
	if c.Flags == nil {
		return nil
	}
	return c.Flags.Handler
}
