// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// CustomizedAnnotation is on virt-controller's Deployment while the KubeVirt object changes it. It contains the
// Deployment's shape as it was installed, and the shape to which it was changed. All other differences are changes by
// users, which are kept when the KubeVirt object's changes are undone.
const CustomizedAnnotation = "operator.kubevirt.io/customized"

// controllerDeployment is virt-controller's own Deployment.
type controllerDeployment struct {
	// live is the object, desired what it should be, and installed what it was installed as.
	live, desired *appsv1.Deployment
	installed     shape
	// refused is the patch of the KubeVirt object that cannot be applied to it. Then it stays as it is.
	refused error
}

func (c *controllerDeployment) refusedPatch() error {
	if c == nil {
		return nil
	}
	return c.refused
}

// image returns the image that the Deployment should have, or nothing.
func (c *controllerDeployment) image() string {
	if c == nil {
		return ""
	}
	container := containerOf(&c.desired.Spec)
	if container == nil {
		return ""
	}
	return container.Image
}

// shape is what the KubeVirt object can change of a Deployment.
type shape struct {
	Labels      map[string]string     `json:"labels,omitempty"`
	Annotations map[string]string     `json:"annotations,omitempty"`
	Spec        appsv1.DeploymentSpec `json:"spec"`
}

// customization is the value of CustomizedAnnotation.
type customization struct {
	Base    shape `json:"base"`
	Applied shape `json:"applied"`
}

// bookkeeping are annotations that belong to no shape: that of this file, kubectl's copy of the manifest, and the
// Deployment controller's counter.
var bookkeeping = []string{CustomizedAnnotation, corev1.LastAppliedConfigAnnotation,
	"deployment.kubernetes.io/revision"}

func shapeOf(d *appsv1.Deployment) shape {
	annotations := maps.Clone(d.Annotations)
	for _, key := range bookkeeping {
		delete(annotations, key)
	}
	return shape{Labels: d.Labels, Annotations: annotations, Spec: d.Spec}
}

// setShape changes a Deployment, and keeps the annotations that belong to no shape.
func setShape(d *appsv1.Deployment, to shape) {
	annotations := map[string]string{}
	maps.Copy(annotations, to.Annotations)
	for _, key := range bookkeeping {
		if value, found := d.Annotations[key]; found {
			annotations[key] = value
		}
	}
	d.Labels, d.Annotations, d.Spec = maps.Clone(to.Labels), annotations, *to.Spec.DeepCopy()
}

// findController reads virt-controller's own Deployment, nil if there is none.
func findController(ctx context.Context, s *Scope) (*controllerDeployment, error) {
	live := &appsv1.Deployment{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: manifests.ControllerName}, live)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Deployment %s: %w", manifests.ControllerName, err)
	}
	c := &controllerDeployment{live: live}
	if c.installed, err = installedShape(live); err != nil {
		return nil, err
	}
	c.refused = c.customize(&s.KubeVirt.Spec, settings(s, nil))
	return c, nil
}

// customize sets what the Deployment should be. That depends on the Deployment alone, and not on what this process was
// started with, so that virt-controllers of two versions agree.
func (c *controllerDeployment) customize(spec *v1.KubeVirtSpec, settings manifests.Settings) error {
	desired := c.live.DeepCopy()
	setShape(desired, c.installed)
	if err := manifests.ConfigureController(desired, spec, settings); err != nil {
		c.desired = c.live.DeepCopy()
		return err
	}
	c.desired = c.live.DeepCopy()
	return c.change(desired)
}

// change makes a changed copy what is desired.
func (c *controllerDeployment) change(to *appsv1.Deployment) error {
	setShape(c.desired, shapeOf(to))
	return recordCustomization(c.desired, c.installed)
}

// recordCustomization sets the annotation of a Deployment that differs from how it was installed.
func recordCustomization(desired *appsv1.Deployment, base shape) error {
	delete(desired.Annotations, CustomizedAnnotation)
	if equality.Semantic.DeepEqual(shapeOf(desired), base) {
		return nil
	}
	record, err := json.Marshal(customization{Base: base, Applied: shapeOf(desired)})
	if err != nil {
		return fmt.Errorf("recording the changes of Deployment %s: %w", desired.Name, err)
	}
	if desired.Annotations == nil {
		desired.Annotations = map[string]string{}
	}
	desired.Annotations[CustomizedAnnotation] = string(record)
	return nil
}

// recorded returns what the annotation of a Deployment contains, and whether it can be read.
func recorded(live *appsv1.Deployment) (customization, bool) {
	known := customization{}
	err := json.Unmarshal([]byte(live.Annotations[CustomizedAnnotation]), &known)
	return known, err == nil
}

// installedShape returns what a Deployment was installed as: what the annotation contains, with what users have changed
// since.
func installedShape(live *appsv1.Deployment) (shape, error) {
	known, found := recorded(live)
	if !found {
		return shapeOf(live), nil
	}
	var raw [3][]byte
	for i, value := range []shape{known.Base, known.Applied, shapeOf(live)} {
		encoded, err := json.Marshal(value)
		if err != nil {
			return shape{}, fmt.Errorf("reading Deployment %s: %w", live.Name, err)
		}
		raw[i] = encoded
	}
	base, applied, current := raw[0], raw[1], raw[2]
	changes, err := strategicpatch.CreateTwoWayMergePatch(applied, current, shape{})
	if err != nil {
		return shape{}, fmt.Errorf("comparing Deployment %s: %w", live.Name, err)
	}
	merged, err := strategicpatch.StrategicMergePatch(base, changes, shape{})
	if err != nil {
		return shape{}, fmt.Errorf("comparing Deployment %s: %w", live.Name, err)
	}
	installed := shape{}
	if err := json.Unmarshal(merged, &installed); err != nil {
		return shape{}, fmt.Errorf("comparing Deployment %s: %w", live.Name, err)
	}
	if now := containerOf(&live.Spec); now != nil && containerOf(&installed.Spec) != nil &&
		!slices.Equal(versionOf(now), versionOf(containerOf(&known.Applied.Spec))) {
		// The manifests of another version were applied, which also set the image. A comparison does not show that if the
		// image is the same as before.
		containerOf(&installed.Spec).Image = now.Image
	}
	return installed, nil
}

// containerOf returns virt-controller's container, or nil.
func containerOf(spec *appsv1.DeploymentSpec) *corev1.Container {
	containers := spec.Template.Spec.Containers
	at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == manifests.ControllerName })
	if at < 0 {
		return nil
	}
	return &containers[at]
}

// versionOf returns what in the manifests differs between two versions: the images of the components that
// virt-controller installs.
func versionOf(c *corev1.Container) []string {
	if c == nil {
		return nil
	}
	var images []string
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "VIRT_") && strings.HasSuffix(e.Name, "_IMAGE") {
			images = append(images, e.Name+"="+e.Value)
		}
	}
	return images
}

// observeController compares the Deployment with what is desired.
func observeController(ctx context.Context, s *Scope, c *controllerDeployment, o *manifests.Observed) error {
	o.Controller = manifests.Component{Name: manifests.ControllerName, Exists: true, Current: true}
	if c == nil {
		o.Controller.Rollout = manifests.Rollout{Done: true, Message: manifests.ControllerName + " runs without a Deployment"}
		return nil
	}
	o.Controller.Rollout = manifests.RolloutOfController(c.live)
	if !c.matches() {
		// The API server adds defaults to what a patch has added.
		defaulted := c.desired.DeepCopy()
		err := s.Client.Patch(ctx, defaulted, optimistic.MergeFrom(c.live), client.DryRunAll)
		if apierrors.IsConflict(err) {
			// The cache is older than the object, whose event triggers the next reconciliation.
			o.Controller.Rollout = manifests.Rollout{Message: "Deployment " + manifests.ControllerName + " has just changed"}
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot change Deployment %s: %w", manifests.ControllerName, err)
		}
		if err := c.change(defaulted); err != nil {
			return err
		}
		o.Controller.Current = c.matches()
	}
	return s.observeCrash(ctx, &o.Controller, c.live)
}

func (c *controllerDeployment) matches() bool {
	return equality.Semantic.DeepEqual(shapeOf(c.desired), shapeOf(c.live)) &&
		c.desired.Annotations[CustomizedAnnotation] == c.live.Annotations[CustomizedAnnotation]
}

// applyController changes the Deployment if the order of the rollout allows it now. The leader that does so is one of
// the Pods that will be replaced. The optimistic lock keeps changes that a user makes meanwhile.
func (s *Scope) applyController(ctx context.Context, c *controllerDeployment, allowed bool) error {
	if c == nil || !allowed {
		return nil
	}
	err := s.Client.Patch(ctx, c.desired, optimistic.MergeFrom(c.live))
	if apierrors.IsConflict(err) {
		// The cache is older than the object, whose event triggers the next reconciliation.
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot change Deployment %s: %w", manifests.ControllerName, err)
	}
	log.FromContext(ctx).Info("Changed virt-controller's own Deployment")
	return nil
}
