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

// restartsContainers says whether a container can have a restart policy of its own in a Pod that has another one. An older API
// server refuses such a Pod, and version 1.34, which knows it as an alpha feature, drops the policy where that is off.
// Source: ContainerRestartRules in kubernetes pkg/features/kube_features.go and pkg/apis/core/validation.
func restartsContainers(config *rest.Config) (bool, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, fmt.Errorf("cannot ask the API server for its version: %w", err)
	}
	info, err := client.ServerVersion()
	if err != nil {
		return false, fmt.Errorf("cannot ask the API server for its version: %w", err)
	}
	return knowsContainerRestarts(info)
}

func knowsContainerRestarts(info *apiversion.Info) (bool, error) {
	server, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return false, fmt.Errorf("cannot read the API server's version: %w", err)
	}
	return server.AtLeast(version.MajorMinor(1, 34)), nil
}
