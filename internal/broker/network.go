// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"os"

	"github.com/vireo-project/vireo/internal/broker/network"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// connectNetwork connects the guest to the Pod's network.
func (s *Server) connectNetwork(pod string, a brokerapi.NetworkArguments) (task, error) {
	return s.inNetwork(pod, func(ctx context.Context, namespace *network.Namespace) (answer, error) {
		interfaces, err := network.Ensure(ctx, namespace, a.Plan)
		return answer{result: brokerapi.ConnectNetworkResult{Interfaces: interfaces}}, err
	}), a.Plan.Check()
}

// forwardPorts forwards the migration's ports to the guest after the migration.
func (s *Server) forwardPorts(pod string, a brokerapi.NetworkArguments) (task, error) {
	return s.inNetwork(pod, func(ctx context.Context, namespace *network.Namespace) (answer, error) {
		return answer{}, network.Forward(ctx, namespace, a.Plan)
	}), a.Plan.Check()
}

// openRouter opens a socket for router advertisements to the guest.
func (s *Server) openRouter(pod string, a brokerapi.OpenRouterArguments) (task, error) {
	return s.inNetwork(pod, func(ctx context.Context, namespace *network.Namespace) (answer, error) {
		socket, result, err := network.OpenRouter(ctx, namespace, a.PodInterface)
		return answer{result: result, file: socket}, err
	}), brokerapi.CheckPodInterface(a.PodInterface)
}

// inNetwork returns a task in the network namespace of the Pod's libvirtd, opened through its descriptor, as its pid may have been
// reused. The node's own network is refused.
func (s *Server) inNetwork(pod string, do func(context.Context, *network.Namespace) (answer, error)) task {
	return s.ofLibvirtd(s.network, pod, func(ctx context.Context, libvirtd *os.File) (answer, error) {
		namespace, err := network.OpenNamespaceFile(procFD(libvirtd) + "/ns/net")
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = namespace.Close() }()
		return do(ctx, namespace)
	})
}
