// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"os"
	"strings"

	"github.com/vireo-project/vireo/internal/broker/network"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// networkState describes the Pod's links.
func (s *Server) networkState(pod string, _ none) (task, error) {
	return s.inNetwork(pod, func(_ context.Context, namespace *network.Namespace) (answer, error) {
		links, err := network.Links(namespace)
		return answer{result: brokerapi.NetworkStateResult{Links: links}}, err
	}), nil
}

// changeNetwork changes the Pod's network.
func (s *Server) changeNetwork(pod string, a brokerapi.ChangeNetworkArguments) (task, error) {
	return s.inNetwork(pod, func(ctx context.Context, namespace *network.Namespace) (answer, error) {
		return answer{}, network.Change(ctx, namespace, a.Steps)
	}), network.Check(a.Steps)
}

// openRouter opens a socket for router advertisements to the guest.
func (s *Server) openRouter(pod string, a brokerapi.OpenRouterArguments) (task, error) {
	if !strings.HasPrefix(a.Bridge, layout.BridgePrefix) {
		return task{}, brokerapi.Invalid("%.32q is no bridge of a guest", a.Bridge)
	}
	return s.inNetwork(pod, func(_ context.Context, namespace *network.Namespace) (answer, error) {
		socket, result, err := network.OpenRouter(namespace, a.Bridge)
		return answer{result: result, file: socket}, err
	}), network.CheckLinkName(a.Bridge)
}

// inNetwork returns a task in the network namespace of the Pod's libvirtd, opened through its descriptor, as its pid may have been
// reused. The node's own network is refused.
func (s *Server) inNetwork(pod string, do func(context.Context, *network.Namespace) (answer, error)) task {
	return s.ofLibvirtd(s.network, pod, func(ctx context.Context, libvirtd *os.File) (answer, error) {
		namespace, err := network.OpenNamespaceFile(podprocess.Reopen(libvirtd) + "/ns/net")
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = namespace.Close() }()
		return do(ctx, namespace)
	})
}
