// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
)

// ReasonNetworkNotFound is the reason while a NetworkAttachmentDefinition, or the kind itself, is missing.
const ReasonNetworkNotFound = "NetworkAttachmentDefinitionNotFound"

// networkRetry is the interval between two reads of a missing NetworkAttachmentDefinition. The kind may not exist, so
// that it cannot be watched.
const networkRetry = 10 * time.Second

// resourceNameAnnotation of a NetworkAttachmentDefinition is the resource of which a Pod needs one to be attached.
// Source: the de facto standard of the Network Plumbing Working Group.
const resourceNameAnnotation = "k8s.v1.cni.cncf.io/resourceName"

// attachmentDefinition is the kind with the networks of Multus.
var attachmentDefinition = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1",
	Kind: "NetworkAttachmentDefinition"}

// readNetworkResources reads the resources of the networks that Multus attaches. As in KubeVirt 1.9, it does nothing
// with the feature gate ExternalNetResourceInjection: another component adds the resources to Pods then, and the VM
// would get two devices.
func (s *scope) readNetworkResources(ctx context.Context) error {
	if s.config.IsEnabled(clusterconfig.GateExternalNetResources) || !s.preparing() || s.pod != nil || s.problem != nil {
		return nil
	}
	resources, missing, err := NetworkResources(ctx, s.apiReader, s.vmi)
	if missing != "" {
		s.problem = &problem{reason: ReasonNetworkNotFound, message: missing}
		s.requeueAfter = outcome.Sooner(s.requeueAfter, networkRetry)
	}
	s.podConfig.NetworkResources = resources
	return err
}

// readMigrationNetwork reads whether the Pod can be attached to the migration network.
func (s *scope) readMigrationNetwork(ctx context.Context) error {
	if !s.preparing() || s.pod != nil || s.problem != nil {
		return nil
	}
	var err error
	s.podConfig.MigrationNetwork, err = MigrationNetwork(ctx, s.apiReader, s.podConfig.MigrationNetwork)
	return err
}

// MigrationNetwork returns the configured network, or none if it does not exist: a mistake in the configuration must
// not keep guests from starting. A migration of such a guest reports it.
func MigrationNetwork(
	ctx context.Context, apiReader client.Reader, named types.NamespacedName,
) (types.NamespacedName, error) {
	if named.Name == "" {
		return named, nil
	}
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(attachmentDefinition)
	err := apiReader.Get(ctx, named, definition)
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return types.NamespacedName{}, nil
	case err != nil:
		return named, fmt.Errorf("get NetworkAttachmentDefinition %s of configuration.migrations.network: %w", named, err)
	}
	return named, nil
}

// NetworkResources returns the resources that the networks of a VMI require, by the name of the network. missing says
// in a sentence what does not exist, or is empty.
func NetworkResources(
	ctx context.Context, apiReader client.Reader, vmi *v1.VirtualMachineInstance,
) (resources map[string]corev1.ResourceName, missing string, err error) {
	resources = map[string]corev1.ResourceName{}
	for _, network := range podspec.Connected(vmi) {
		if network.Multus == nil {
			continue
		}
		key := podspec.AttachmentDefinition(vmi.Namespace, network.Multus)
		definition := &metav1.PartialObjectMetadata{}
		definition.SetGroupVersionKind(attachmentDefinition)
		err := apiReader.Get(ctx, key, definition)
		switch {
		case meta.IsNoMatchError(err):
			return resources, fmt.Sprintf(
				"Network %s needs NetworkAttachmentDefinition %s, but the cluster has no such kind: install Multus", network.Name,
				key), nil
		case apierrors.IsNotFound(err):
			return resources, fmt.Sprintf(
				"NetworkAttachmentDefinition %s of network %s does not exist, waiting for it", key, network.Name), nil
		case err != nil:
			return resources, "", fmt.Errorf("get NetworkAttachmentDefinition %s of network %s: %w", key, network.Name, err)
		}
		if name := definition.Annotations[resourceNameAnnotation]; name != "" {
			resources[network.Name] = corev1.ResourceName(name)
		}
	}
	return resources, "", nil
}
