// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-network-broker is the part of virt-broker's Pod that connects guests to the networks of their Pods, for
// virt-handler. It has the privileges for networks, and changes no file.
package main

import (
	"context"
	"path/filepath"

	"github.com/vireo-project/vireo/internal/broker/network"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func main() {
	server.Main(server.Program{
		Name: brokerapi.NetworkBroker,
		Start: func(s server.Settings) (server.Verbs, func(context.Context) error, error) {
			return network.Verbs(pods.New(filepath.Join(s.KubeletRoot, "pods"), nil)), nil, nil
		},
	})
}
