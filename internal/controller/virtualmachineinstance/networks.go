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
	"github.com/vireo-project/vireo/internal/podspec"
)

// ReasonNetworkNotFound is the reason while a NetworkAttachmentDefinition, or the kind itself, is missing.
const ReasonNetworkNotFound = "NetworkAttachmentDefinitionNotFound"

// networkRetry is the pause between two searches for a NetworkAttachmentDefinition. The kind may not exist, so that it
// cannot be watched.
const networkRetry = 10 * time.Second

// resourceNameAnnotation on a NetworkAttachmentDefinition names the resource of which a Pod needs one to be attached.
// Source: the Network Plumbing Working Group's standard.
const resourceNameAnnotation = "k8s.v1.cni.cncf.io/resourceName"

// attachmentDefinition is the kind that Multus reads.
var attachmentDefinition = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}

// readNetworks finds the resources of the networks that Multus attaches. As in KubeVirt 1.9, it does so only if the
// feature gate ExternalNetResourceInjection, by which another component adds them to Pods, is off: counted by both, a
// VM would take two devices.
func readNetworks(ctx context.Context, s *Scope) error {
	if !s.ReadNetworks || !s.preparing() || s.Pod != nil || s.Problem != nil {
		return nil
	}
	resources, missing, err := NetworkResources(ctx, s.Live, s.VMI)
	if missing != "" {
		s.Problem = &Problem{Reason: ReasonNetworkNotFound, Message: missing}
		s.RequeueAfter = networkRetry
	}
	s.Config.NetworkResources = resources
	return err
}

// readMigrationNetwork finds out whether the Pod can be on the network over which guests migrate.
func readMigrationNetwork(ctx context.Context, s *Scope) error {
	if !s.preparing() || s.Pod != nil || s.Problem != nil {
		return nil
	}
	var err error
	s.Config.MigrationNetwork, err = MigrationNetwork(ctx, s.Live, s.Config.MigrationNetwork)
	return err
}

// MigrationNetwork is the network that is named, or none if it does not exist: a mistake in the cluster's configuration must keep no guest
// from starting. Whoever moves such a guest says so.
func MigrationNetwork(ctx context.Context, live client.Reader, named types.NamespacedName) (types.NamespacedName, error) {
	if named.Name == "" {
		return named, nil
	}
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(attachmentDefinition)
	err := live.Get(ctx, named, definition)
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return types.NamespacedName{}, nil
	case err != nil:
		return named, fmt.Errorf("get NetworkAttachmentDefinition %s of configuration.migrations.network: %w", named, err)
	}
	return named, nil
}

// NetworkResources are the resources that the networks of a VMI name, by the network's name. What is missing is said in words,
// empty if nothing is.
func NetworkResources(
	ctx context.Context, live client.Reader, vmi *v1.VirtualMachineInstance,
) (resources map[string]corev1.ResourceName, missing string, err error) {
	resources = map[string]corev1.ResourceName{}
	for _, network := range podspec.Connected(vmi) {
		if network.Multus == nil {
			continue
		}
		key := podspec.AttachmentDefinition(vmi.Namespace, network.Multus)
		definition := &metav1.PartialObjectMetadata{}
		definition.SetGroupVersionKind(attachmentDefinition)
		err := live.Get(ctx, key, definition)
		switch {
		case meta.IsNoMatchError(err):
			return resources, fmt.Sprintf("Network %s needs NetworkAttachmentDefinition %s, but the cluster has no such kind: install Multus",
				network.Name, key), nil
		case apierrors.IsNotFound(err):
			return resources, fmt.Sprintf("NetworkAttachmentDefinition %s of network %s does not exist, waiting for it", key, network.Name), nil
		case err != nil:
			return resources, "", fmt.Errorf("get NetworkAttachmentDefinition %s of network %s: %w", key, network.Name, err)
		}
		if name := definition.Annotations[resourceNameAnnotation]; name != "" {
			resources[network.Name] = corev1.ResourceName(name)
		}
	}
	return resources, "", nil
}
