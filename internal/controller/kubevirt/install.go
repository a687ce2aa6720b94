// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/operator"
)

// Install makes the cluster have what the object asks for. An authority that cannot be rotated keeps nothing else back.
func Install(ctx context.Context, s *Scope) error {
	bundles, look, notRotated := authorities(ctx, s)
	s.Look = look
	notRotated = errors.Join(notRotated, checkRequests(ctx, s))
	if bundles == nil {
		return notRotated
	}
	if err := install(ctx, s, bundles); err != nil {
		return errors.Join(notRotated, err)
	}
	return errors.Join(notRotated, checkAsking(ctx, s))
}

func install(ctx context.Context, s *Scope, bundles map[string][]byte) error {
	objects, err := operator.Render(settings(s, bundles))
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

// DeploymentID identifies what the object of a scope asks for, whatever is installed. TargetDeploymentID in the status follows it.
func DeploymentID(s *Scope) (string, error) {
	// The authorities are no part of it.
	objects, err := operator.Render(settings(s, nil))
	if err != nil {
		return "", err
	}
	return operator.DeploymentID(objects), nil
}

func settings(s *Scope, bundles map[string][]byte) operator.Settings {
	spec := &s.KubeVirt.Spec
	settings := operator.Settings{
		Namespace:   s.Namespace,
		KubeletRoot: s.KubeletRoot,
		Config:      s.Config,
		Workloads:   placement(spec.Workloads),
		Infra:       placement(spec.Infra),
		Bundles:     bundles,
	}
	if spec.Infra != nil {
		settings.Replicas = spec.Infra.Replicas
	}
	if flags := spec.CustomizeComponents.Flags; flags != nil {
		settings.HandlerFlags, settings.APIFlags = flags.Handler, flags.API
	}
	return settings
}

// observe reads the rollout. Right after something was applied the cache may not have it: its event brings the next reconcile.
func observe(ctx context.Context, s *Scope) error {
	agents, api := &appsv1.DaemonSet{}, &appsv1.Deployment{}
	seen, err := s.see(ctx, operator.HandlerName, agents)
	if err != nil {
		return err
	}
	rolled := operator.Rollout{Message: "DaemonSet " + operator.HandlerName + " was just applied"}
	if seen {
		s.Agents, rolled = agents, operator.RolloutOf(agents)
	}
	if seen, err = s.see(ctx, operator.APIName, api); err != nil {
		return err
	}
	served := operator.Rollout{Message: "Deployment " + operator.APIName + " was just applied"}
	if seen {
		s.API, served = api, operator.RolloutOfDeployment(api)
	}
	s.Rollout = operator.Join(rolled, served)
	return nil
}

// see reads what was applied, and says whether it is that.
func (s *Scope) see(ctx context.Context, name string, into client.Object) (bool, error) {
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return !stale(into, s.Generations), nil
}

// stale says that the cache is behind what was just applied.
func stale(o client.Object, applied []v1.GenerationStatus) bool {
	for _, g := range applied {
		if g.Group == appsv1.GroupName && g.Name == o.GetName() {
			return o.GetGeneration() < g.LastGeneration || o.GetAnnotations()[operator.HashAnnotation] != g.Hash
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
