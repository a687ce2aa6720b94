// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/agent/reconciler"
	"github.com/vireo-project/vireo/internal/agent/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Connections opens connections for the reconciler.
type Connections struct{ *rpc.Manager }

// Open returns the connection to a Pod.
func (c Connections) Open(pod hypervisor.PodRef) (reconciler.Connection, error) {
	conn, err := c.Conn(pod)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// Served opens connections for the server of virt-api's requests.
type Served struct{ *rpc.Manager }

// Open returns the connection to a Pod, and waits while it is being made.
func (m Served) Open(ctx context.Context, pod hypervisor.PodRef) (server.Connection, error) {
	conn, err := m.Await(ctx, pod)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// interfaceRetry is the delay before the next reconciliation checks whether a missing interface of a Pod exists.
const interfaceRetry = 10 * time.Second

// Networks connects guests to their Pods' networks, through the broker.
type Networks struct {
	*network.Advertisers
	Broker *brokerclient.Client
}

// Ensure connects the guest's interfaces and returns the facts about them.
func (n Networks) Ensure(
	ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod, migrationTarget bool,
) (map[string]domain.InterfaceFact, error) {
	plan, err := plan(vmi, pod)
	if err != nil {
		return nil, err
	}
	if migrationTarget {
		plan = network.ForMigrationTarget(plan)
	}
	links, err := n.Broker.NetworkLinks(ctx, pod.UID)
	if err != nil {
		return nil, fromNetwork(err)
	}
	steps, connected, err := network.Connect(plan, links)
	if err == nil {
		err = n.Broker.ChangeNetwork(ctx, pod.UID, steps)
	}
	if err != nil {
		return nil, fromNetwork(err)
	}
	interfaces := make(map[string]domain.InterfaceFact, len(connected))
	for name, tap := range connected {
		interfaces[name] = domain.InterfaceFact{Tap: tap.Tap, MAC: tap.MAC, MTU: tap.MTU}
	}
	return interfaces, nil
}

// Forward forwards the migration's ports to the guest after the migration.
func (n Networks) Forward(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	plan, err := plan(vmi, pod)
	if err != nil {
		return err
	}
	links, err := n.Broker.NetworkLinks(ctx, pod.UID)
	if err != nil {
		return fromNetwork(err)
	}
	steps, err := network.Forward(plan, links)
	if err == nil {
		err = n.Broker.ChangeNetwork(ctx, pod.UID, steps)
	}
	return fromNetwork(err)
}

// fromNetwork makes a missing interface of the Pod a retryable error: it may be created later, without an event.
func fromNetwork(err error) error {
	var missing *network.MissingInterfaceError
	switch {
	case errors.As(err, &missing):
		return &reconciler.Retry{Reason: reconciler.ReasonMissingPodInterface, After: interfaceRetry, Err: err}
	case brokerapi.CodeOf(err) == brokerapi.CodeNodesNetwork:
		return &reconciler.Terminal{Reason: reconciler.ReasonInvalidNetwork, Err: err}
	default:
		return err
	}
}

// Advertise starts to advertise the guest's IPv6 gateway.
func (n Networks) Advertise(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	plan, err := plan(vmi, pod)
	if err != nil {
		return err
	}
	n.Run(pod.UID, network.AdvertiseFor(plan, func(ctx context.Context, podInterface string) (network.Router, error) {
		conn, gateway, err := n.Broker.OpenRouter(ctx, pod.UID, podInterface)
		return network.Router{Conn: conn, MAC: gateway.MAC, MTU: gateway.MTU}, err
	}))
	return nil
}

// plan returns the network plan of a VMI in a Pod. The Pod, not the VMI, determines whether there is a sidecar: a change of the
// VMI affects its next Pod only. It rejects Pods on the node's network, which virt-controller does not create; the broker does too.
func plan(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (network.Plan, error) {
	if pod.Spec.HostNetwork {
		return network.Plan{}, &reconciler.Terminal{Reason: reconciler.ReasonInvalidNetwork,
			Err: fmt.Errorf("pod %s is on the node's network (hostNetwork): a launcher Pod has one of its own", pod.Name)}
	}
	plan, err := network.NewPlan(vmi)
	if err != nil {
		return plan, &reconciler.Terminal{Reason: reconciler.ReasonInvalidNetwork, Err: err}
	}
	if podspec.HasSidecar(pod.Labels) {
		plan = network.WithSidecar(plan)
	}
	return plan, nil
}
