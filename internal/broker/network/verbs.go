// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"os"
	"strings"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/brokerapi/networkapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// verbs are the verbs about the networks of launcher Pods.
type verbs struct {
	pods *pods.Pods
	// limit limits the requests that enter a Pod's network namespace.
	limit *server.Limiter
}

// Verbs returns the verbs about the networks of launcher Pods.
func Verbs(of *pods.Pods) server.Verbs {
	v := verbs{pods: of, limit: server.NewLimiter(1, 16, "the network of the launcher Pod is being changed: retry")}
	return server.Verbs{
		brokerapi.NetworkState:  server.With(v.networkState),
		brokerapi.ChangeNetwork: server.With(v.changeNetwork),
		brokerapi.OpenRouter:    server.With(v.openRouter),
	}
}

// networkState describes the Pod's links.
func (v verbs) networkState(pod string, _ server.None) (server.Task, error) {
	return v.inNetwork(pod, func(_ context.Context, namespace *Namespace) (server.Answer, error) {
		links, err := Links(namespace)
		return server.Answer{Result: networkapi.NetworkStateResult{Links: links}}, err
	}), nil
}

// changeNetwork changes the Pod's network step by step.
func (v verbs) changeNetwork(pod string, a networkapi.ChangeNetworkArguments) (server.Task, error) {
	return v.inNetwork(pod, func(ctx context.Context, namespace *Namespace) (server.Answer, error) {
		return server.Answer{}, Change(ctx, namespace, a.Steps)
	}), Check(a.Steps)
}

// openRouter opens a socket for router advertisements to the guest.
func (v verbs) openRouter(pod string, a networkapi.OpenRouterArguments) (server.Task, error) {
	if !strings.HasPrefix(a.Bridge, layout.BridgePrefix) {
		return server.Task{}, brokerapi.Invalid("%.32q is no bridge of a guest", a.Bridge)
	}
	return v.inNetwork(pod, func(_ context.Context, namespace *Namespace) (server.Answer, error) {
		socket, result, err := OpenRouter(namespace, a.Bridge)
		return server.Answer{Result: result, File: socket}, err
	}), CheckLinkName(a.Bridge)
}

// inNetwork returns a task in the network namespace of the Pod's libvirtd, opened through its descriptor, as its pid may have been
// reused. The node's own network is refused.
func (v verbs) inNetwork(pod string, do func(context.Context, *Namespace) (server.Answer, error)) server.Task {
	return server.OfLibvirtd(v.pods, v.limit, pod, func(ctx context.Context, libvirtd *os.File) (server.Answer, error) {
		namespace, err := OpenNamespaceFile(podprocess.Reopen(libvirtd) + "/ns/net")
		if err != nil {
			return server.Answer{}, err
		}
		defer func() { _ = namespace.Close() }()
		return do(ctx, namespace)
	})
}
