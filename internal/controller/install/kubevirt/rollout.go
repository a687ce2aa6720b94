// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
)

// podInterval is how often the Pods of a rollout are read: the cache does not contain them, and a Pod that fails to
// start does not change the status of its DaemonSet or Deployment.
const podInterval = 10 * time.Second

// rollOut applies the next step of the rollout, and sets the scope's Rollout and Crash.
func rollOut(ctx context.Context, s *Scope, observed *cluster, components map[string]*unstructured.Unstructured) error {
	brokers, agents, api := components[manifests.BrokerName], components[manifests.HandlerName],
		components[manifests.APIName]
	installed := &s.KubeVirt.Status
	state := manifests.Observed{First: installed.ObservedDeploymentID == "",
		Forward: manifests.IsForward(s.targetVersion(), installed.ObservedKubeVirtVersion)}
	var err error
	if s.Brokers, err = observeDaemons(ctx, s, observed, manifests.BrokerName, brokers, &state.Brokers); err != nil {
		return err
	}
	if s.Agents, err = observeDaemons(ctx, s, observed, manifests.HandlerName, agents, &state.Agents); err != nil {
		return err
	}
	if err := observeAPI(ctx, s, api, &state); err != nil {
		return err
	}
	proxy := components[manifests.ExportProxyName]
	if err := observeProxy(ctx, s, proxy, &state); err != nil {
		return err
	}
	if err := observeController(ctx, s, observed.controller, &state); err != nil {
		return err
	}
	plan := manifests.Next(state)
	s.Rollout, s.Crash = plan.Rollout, plan.Crash
	if !plan.Rollout.Done && installed.ObservedDeploymentID != s.DeploymentID {
		s.recheck(s.Now.Add(podInterval))
	}
	if err := errors.Join(setMaxUnavailable(brokers, plan.BrokersUnavailable),
		setMaxUnavailable(agents, plan.AgentsUnavailable)); err != nil {
		return err
	}
	err = errors.Join(observed.controller.refusedPatch(),
		s.applyComponent(ctx, brokers, liveDaemons(s.Brokers), plan.Brokers || state.Brokers.Exists && state.Brokers.Current),
		s.applyComponent(ctx, agents, liveDaemons(s.Agents), plan.Agents || state.Agents.Exists && state.Agents.Current),
		s.applyComponent(ctx, api, s.liveAPI(), plan.API),
		s.applyComponent(ctx, proxy, s.liveProxy(), plan.Proxy),
		s.applyController(ctx, observed.controller, plan.Controller))
	for _, read := range []*appsv1.DaemonSet{s.Brokers, s.Agents} {
		if s.Rollout.Done && read != nil && s.wasChanged(read) {
			// Only the number of Pods that may be replaced at a time has changed.
			s.Rollout = manifests.Rollout{Message: "DaemonSet " + read.Name + " was just applied"}
		}
	}
	return err
}

// setMaxUnavailable sets how many Pods of a DaemonSet may be replaced at a time. A nil object could not be patched and
// stays as it is.
func setMaxUnavailable(daemons *unstructured.Unstructured, number int) error {
	if daemons == nil {
		return nil
	}
	return manifests.SetMaxUnavailable(daemons, number)
}

// wasChanged reports whether an object was changed after it was read.
func (s *Scope) wasChanged(read client.Object) bool {
	return slices.ContainsFunc(s.Generations, func(g v1.GenerationStatus) bool {
		return g.Group == appsv1.GroupName && g.Name == read.GetName() && g.LastGeneration > read.GetGeneration()
	})
}

// applyComponent applies an object if the order of the rollout allows it now, and records its generation. A nil object
// could not be patched and stays as it is.
func (s *Scope) applyComponent(
	ctx context.Context, desired *unstructured.Unstructured, live client.Object, allowed bool,
) error {
	if desired == nil {
		return nil
	}
	if allowed {
		records, err := s.installer().Apply(ctx, desired)
		s.Generations = append(s.Generations, records...)
		return err
	}
	if live == nil {
		return nil
	}
	record, err := s.installer().Record(desired, live)
	if err == nil {
		s.Generations = append(s.Generations, record)
	}
	return err
}

func (s *Scope) targetVersion() string {
	_, _, tag := clusterconfig.SplitImage(s.Config.Images.Handler)
	return tag
}

// liveDaemons returns no object, and not an object that is nil, if a DaemonSet does not exist.
func liveDaemons(ds *appsv1.DaemonSet) client.Object {
	if ds == nil {
		return nil
	}
	return ds
}

func (s *Scope) liveAPI() client.Object {
	if s.API == nil {
		return nil
	}
	return s.API
}

func (s *Scope) liveProxy() client.Object {
	if s.Proxy == nil {
		return nil
	}
	return s.Proxy
}

// observeProxy reads the Deployment of virt-exportproxy, if it is to be installed.
func observeProxy(ctx context.Context, s *Scope, desired *unstructured.Unstructured, o *manifests.Observed) error {
	if s.Config.Images.ExportProxy == "" {
		return nil
	}
	live := &appsv1.Deployment{}
	found, err := s.observe(ctx, manifests.ExportProxyName, live, desired)
	o.Proxy = &found
	if err != nil || !found.Exists {
		return err
	}
	s.Proxy = live
	found.Rollout = manifests.RolloutOfDeployment(live)
	return s.observeCrash(ctx, o.Proxy, live)
}

// observeDaemons reads a DaemonSet, and its Pods unless all are updated and ready. It returns nil if there is none. The
// cache may not have the DaemonSet yet that was just applied. Then it is applied again without a change, and its event
// triggers the next reconciliation.
func observeDaemons(
	ctx context.Context, s *Scope, observed *cluster, name string, desired *unstructured.Unstructured,
	d *manifests.Daemons,
) (*appsv1.DaemonSet, error) {
	live := &appsv1.DaemonSet{}
	var err error
	d.Component, err = s.observe(ctx, name, live, desired)
	if err != nil || !d.Exists {
		return nil, err
	}
	d.Nodes, d.Updated = int(live.Status.DesiredNumberScheduled), int(live.Status.UpdatedNumberScheduled)
	d.Rollout = manifests.RolloutOf(live, 0, 0)
	if d.Current && d.Rollout.Done {
		return live, nil
	}
	pods, err := s.podsOf(ctx, name)
	if err != nil {
		return nil, err
	}
	// Whether the Pod of each lost node is updated.
	lost := map[string]bool{}
	lostUpdated := 0
	for i := range pods {
		if node := pods[i].Spec.NodeName; observed.lost[node] && !lost[node] {
			lost[node] = manifests.IsUpdated(&pods[i], &live.Spec.Template)
		}
	}
	for _, updated := range lost {
		if updated {
			lostUpdated++
		}
	}
	d.Lost, d.Updated = len(lost), d.Updated-lostUpdated
	d.Rollout = manifests.RolloutOf(live, d.Lost, lostUpdated)
	if !d.Current {
		return live, nil // No Pod is updated yet. What old Pods lack must not stop new ones.
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return observed.lost[p.Spec.NodeName] })
	s.examine(&d.Component, pods, &live.Spec.Template)
	for i := range pods {
		if manifests.IsUpdated(&pods[i], &live.Spec.Template) && s.available(&pods[i], live.Spec.MinReadySeconds) {
			d.Available++
		}
	}
	return live, nil
}

func observeAPI(ctx context.Context, s *Scope, desired *unstructured.Unstructured, o *manifests.Observed) error {
	live := &appsv1.Deployment{}
	var err error
	o.API, err = s.observe(ctx, manifests.APIName, live, desired)
	if err != nil || !o.API.Exists {
		return err
	}
	s.API = live
	o.API.Rollout = manifests.RolloutOfDeployment(live)
	return s.observeCrash(ctx, &o.API, live)
}

// observe reads a component's object and compares it with the desired one. If that is nil, the existing object stays as
// it is.
func (s *Scope) observe(
	ctx context.Context, name string, into client.Object, desired *unstructured.Unstructured,
) (manifests.Component, error) {
	found := manifests.Component{Name: name}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, into)
	if client.IgnoreNotFound(err) != nil {
		return found, fmt.Errorf("cannot read %s: %w", name, err)
	}
	found.Exists, found.Current = err == nil, desired == nil
	if found.Exists && desired != nil {
		found.Current, err = manifests.Matches(desired, into)
	}
	return found, client.IgnoreNotFound(err)
}

// observeCrash finds out why the Pods of a component that is being replaced do not run or are not ready.
func (s *Scope) observeCrash(ctx context.Context, c *manifests.Component, live *appsv1.Deployment) error {
	if !c.Current || c.Rollout.Done {
		return nil
	}
	if c.Crash = manifests.FailureOfDeployment(live); c.Crash != "" {
		return nil
	}
	pods, err := s.podsOf(ctx, c.Name)
	s.examine(c, pods, &live.Spec.Template)
	return err
}

func (s *Scope) podsOf(ctx context.Context, component string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := s.APIReader.List(ctx, pods, client.InNamespace(s.Namespace),
		client.MatchingLabels{v1.AppLabel: component}); err != nil {
		return nil, fmt.Errorf("cannot list the Pods of %s: %w", component, err)
	}
	return pods.Items, nil
}

// examine finds a Pod of a template that cannot run, and names one that runs without becoming ready.
func (s *Scope) examine(c *manifests.Component, pods []corev1.Pod, template *corev1.PodTemplateSpec) {
	unready := ""
	for i := range pods {
		if !manifests.IsUpdated(&pods[i], template) {
			continue
		}
		c.Crash = cmp.Or(c.Crash, manifests.CrashOf(&pods[i], s.Now))
		unready = cmp.Or(unready, manifests.UnreadyOf(&pods[i], s.Now))
	}
	if unready != "" && !c.Rollout.Done {
		c.Rollout.Message += ": " + unready
	}
}

// available reports whether a Pod has been ready for long enough.
func (s *Scope) available(pod *corev1.Pod, minReadySeconds int32) bool {
	since, ready := manifests.AvailableSince(pod)
	return ready && !s.Now.Before(since.Add(time.Duration(minReadySeconds)*time.Second))
}
