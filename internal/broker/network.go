// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/vireo-project/vireo/internal/broker/network"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// connectNetwork connects the guest to the Pod's network.
func (s *Server) connectNetwork(pod string, arguments json.RawMessage) (task, error) {
	plan, err := planOf(arguments)
	if err != nil {
		return task{}, err
	}
	return s.inNetwork(pod, func(ctx context.Context, namespace *network.Namespace) (answer, error) {
		interfaces, err := network.Ensure(ctx, namespace, plan)
		return answer{result: brokerapi.ConnectNetworkResult{Interfaces: interfaces}}, err
	}), nil
}

// forwardPorts forwards the migration's ports to the guest after the migration.
func (s *Server) forwardPorts(pod string, arguments json.RawMessage) (task, error) {
	plan, err := planOf(arguments)
	if err != nil {
		return task{}, err
	}
	return s.inNetwork(pod, func(ctx context.Context, namespace *network.Namespace) (answer, error) {
		return answer{}, network.Forward(ctx, namespace, plan)
	}), nil
}

// openRouter opens a socket for router advertisements to the guest.
func (s *Server) openRouter(pod string, arguments json.RawMessage) (task, error) {
	var a brokerapi.OpenRouterArguments
	if err := decode(arguments, &a); err != nil {
		return task{}, err
	}
	if err := brokerapi.CheckPodInterface(a.PodInterface); err != nil {
		return task{}, err
	}
	return s.inNetwork(pod, func(ctx context.Context, namespace *network.Namespace) (answer, error) {
		socket, result, err := network.OpenRouter(ctx, namespace, a.PodInterface)
		return answer{result: result, file: socket}, err
	}), nil
}

func planOf(arguments json.RawMessage) (brokerapi.Plan, error) {
	var a brokerapi.NetworkArguments
	if err := decode(arguments, &a); err != nil {
		return brokerapi.Plan{}, err
	}
	return a.Plan, a.Plan.Check()
}

// inNetwork returns a task in the network namespace of the Pod's libvirtd, opened through its descriptor, as its pid may have been
// reused. The node's own network is refused.
func (s *Server) inNetwork(pod string, do func(context.Context, *network.Namespace) (answer, error)) task {
	return task{limit: s.network, run: func(ctx context.Context) (answer, error) {
		libvirtd, err := s.pods.Libvirtd(pod)
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = libvirtd.Close() }()
		namespace, err := network.OpenNamespaceFile(fmt.Sprintf("/proc/self/fd/%d/ns/net", libvirtd.Fd()))
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = namespace.Close() }()
		return do(ctx, namespace)
	}}
}
