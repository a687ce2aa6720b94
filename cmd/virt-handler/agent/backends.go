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
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/agent/reconciler"
	"github.com/vireo-project/vireo/internal/agent/server"
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

// Open returns the connection to a Pod.
func (m Served) Open(pod hypervisor.PodRef) (server.Connection, error) {
	conn, err := m.Conn(pod)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// interfaceRetry is the delay before the next reconciliation checks whether a missing interface of a Pod exists.
const interfaceRetry = 10 * time.Second

// Networks connects guests in the network namespace of their Pod's libvirtd.
type Networks struct{ *network.Advertisers }

// Ensure connects the guest's interfaces and returns the facts about them.
func (Networks) Ensure(
	ctx context.Context, process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod, migrationTarget bool,
) (map[string]domain.InterfaceFact, error) {
	plan, err := plan(vmi, pod)
	if err != nil {
		return nil, err
	}
	if migrationTarget {
		plan = plan.ForMigrationTarget()
	}
	namespace, err := namespaceOf(process, pod)
	if err != nil {
		return nil, err
	}
	defer func() { _ = namespace.Close() }()
	results, err := network.Ensure(ctx, namespace, plan)
	if err != nil {
		return nil, fromNetwork(err)
	}
	interfaces := make(map[string]domain.InterfaceFact, len(results))
	for name, result := range results {
		interfaces[name] = result.Fact
	}
	return interfaces, nil
}

// Forward forwards the migration's ports to the guest after the migration.
func (Networks) Forward(ctx context.Context, process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	plan, err := plan(vmi, pod)
	if err != nil {
		return err
	}
	namespace, err := namespaceOf(process, pod)
	if err != nil {
		return err
	}
	defer func() { _ = namespace.Close() }()
	return fromNetwork(network.Forward(ctx, namespace, plan))
}

// fromNetwork makes a missing interface of the Pod a retryable error: it may be created later, without an event.
func fromNetwork(err error) error {
	var missing *network.MissingInterfaceError
	if errors.As(err, &missing) {
		return &reconciler.Retry{Reason: reconciler.ReasonMissingPodInterface, After: interfaceRetry, Err: err}
	}
	return err
}

// Advertise starts to advertise the guest's IPv6 gateway.
func (n Networks) Advertise(process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	return n.Run(pod.UID, func() (network.Advertisement, error) {
		plan, err := plan(vmi, pod)
		if err != nil {
			return nil, err
		}
		namespace, err := namespaceOf(process, pod)
		if err != nil {
			return nil, err
		}
		return network.NamespaceAdvertisement{Namespace: namespace, Plan: plan}, nil
	})
}

// plan returns the network plan of a VMI in a Pod. The Pod, not the VMI, determines whether there is a sidecar: a change of the
// VMI affects its next Pod only.
func plan(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (network.Plan, error) {
	plan, err := network.NewPlan(vmi)
	if err != nil {
		return plan, &reconciler.Terminal{Reason: reconciler.ReasonInvalidNetwork, Err: err}
	}
	if podspec.HasSidecar(pod.Labels) {
		plan = plan.WithSidecar()
	}
	return plan, nil
}

// namespaceOf opens the Pod's network namespace through the descriptor of the verified process, as its pid may have been reused.
// It rejects Pods on the node's network, which virt-controller does not create.
func namespaceOf(process *hypervisor.Process, pod *corev1.Pod) (*network.Namespace, error) {
	if pod.Spec.HostNetwork {
		return nil, &reconciler.Terminal{Reason: reconciler.ReasonInvalidNetwork,
			Err: fmt.Errorf("pod %s is on the node's network (hostNetwork): %w", pod.Name, network.ErrNodesNamespace)}
	}
	return network.OpenNamespaceFile(fmt.Sprintf("/proc/self/fd/%d/ns/net", process.Dir.Fd()))
}
