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
	"github.com/vireo-project/vireo/internal/controller/kubevirt/operator"
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

// DeploymentID identifies what is to be installed for the scope's object. It becomes status.targetDeploymentID.
func DeploymentID(s *Scope) (string, error) {
	// It does not depend on the authorities.
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

		MetricsAuthorization: s.MetricsAuthorization,
	}
	if spec.Infra != nil {
		settings.Replicas = spec.Infra.Replicas
	}
	if flags := spec.CustomizeComponents.Flags; flags != nil {
		settings.HandlerFlags, settings.APIFlags = flags.Handler, flags.API
	}
	return settings
}

// observe reads the rollout. The cache may not have yet what was just applied: its event triggers the next reconciliation.
func observe(ctx context.Context, s *Scope) error {
	agents, api := &appsv1.DaemonSet{}, &appsv1.Deployment{}
	fresh, err := s.readApplied(ctx, operator.HandlerName, agents)
	if err != nil {
		return err
	}
	rolled := operator.Rollout{Message: "DaemonSet " + operator.HandlerName + " was just applied"}
	if fresh {
		s.Agents, rolled = agents, operator.RolloutOf(agents)
	}
	if fresh, err = s.readApplied(ctx, operator.APIName, api); err != nil {
		return err
	}
	served := operator.Rollout{Message: "Deployment " + operator.APIName + " was just applied"}
	if fresh {
		s.API, served = api, operator.RolloutOfDeployment(api)
	}
	s.Rollout = operator.Join(rolled, served)
	return nil
}

// readApplied reads an object and reports whether it is as fresh as what was just applied.
func (s *Scope) readApplied(ctx context.Context, name string, into client.Object) (bool, error) {
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return !stale(into, s.Generations), nil
}

// stale reports whether an object of the cache is older than what was just applied.
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
