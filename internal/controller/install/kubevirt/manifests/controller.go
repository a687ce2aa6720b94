// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// ControllerName is the name of virt-controller's Deployment, which `make deploy` or a chart installs.
const ControllerName = "virt-controller"

// ConfigureController changes virt-controller's Deployment, as it was installed, to what the KubeVirt object specifies.
// What the object does not specify stays.
func ConfigureController(d *appsv1.Deployment, spec *v1.KubeVirtSpec, s Settings) error {
	pod := &d.Spec.Template.Spec
	at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == ControllerName })
	if at >= 0 {
		container := &pod.Containers[at]
		container.Image = clusterconfig.Image(container.Image, spec)
		if s.Config.ImagePullPolicy != "" {
			container.ImagePullPolicy = s.Config.ImagePullPolicy
		}
		if s.Customize.Flags != nil {
			container.Args = append(container.Args, flagArgs(s.Customize.Flags.Controller)...)
		}
	}
	for _, secret := range s.Config.ImagePullSecrets {
		if !slices.Contains(pod.ImagePullSecrets, secret) {
			pod.ImagePullSecrets = append(pod.ImagePullSecrets, secret)
		}
	}
	placeInfra(pod, s.Infra)
	if s.Replicas != nil {
		d.Spec.Replicas = ptr.To(int32(max(*s.Replicas, 1)))
	}
	if len(s.Labels) > 0 {
		d.Labels = mergeMaps(d.Labels, s.Labels)
		d.Spec.Template.Labels = mergeMaps(d.Spec.Template.Labels, s.Labels)
	}
	d.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err := customize(d, s.Customize.Patches); err != nil {
		return err
	}
	// By this label it is found.
	d.Labels = mergeMaps(d.Labels, map[string]string{v1.AppLabel: ControllerName})
	return nil
}
