// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// restartsContainers reports whether the cluster supports a container with a restart policy that differs from the Pod's. Older
// API servers reject such a Pod; version 1.34, where the feature is alpha, drops the policy if the feature is off.
// Source: ContainerRestartRules in kubernetes pkg/features/kube_features.go and pkg/apis/core/validation.
func restartsContainers(config *rest.Config) (bool, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, fmt.Errorf("cannot get the API server's version: %w", err)
	}
	info, err := client.ServerVersion()
	if err != nil {
		return false, fmt.Errorf("cannot get the API server's version: %w", err)
	}
	return supportsContainerRestarts(info)
}

func supportsContainerRestarts(info *apiversion.Info) (bool, error) {
	server, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return false, fmt.Errorf("cannot read the API server's version: %w", err)
	}
	return server.AtLeast(version.MajorMinor(1, 34)), nil
}
