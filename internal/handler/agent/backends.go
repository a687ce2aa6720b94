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
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/handler/network"
	"github.com/vireo-project/vireo/internal/handler/reconciler"
	"github.com/vireo-project/vireo/internal/handler/server"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Machines gives the reconciler the real connections.
type Machines struct{ *rpc.Manager }

// Open returns the connection to a Pod.
func (m Machines) Open(pod hypervisor.PodRef) (reconciler.Machine, error) {
	conn, err := m.Conn(pod)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// Served gives virt-api's requests the same connections.
type Served struct{ *rpc.Manager }

// Open returns the connection to a Pod.
func (m Served) Open(pod hypervisor.PodRef) (server.Machine, error) {
	conn, err := m.Conn(pod)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// interfaceRetry is the pause between two searches for an interface of a Pod.
const interfaceRetry = 10 * time.Second

// Networks connects guests in the network namespace of their Pod's libvirtd.
type Networks struct{ *network.Advertisers }

// Ensure makes what is missing.
func (Networks) Ensure(
	ctx context.Context, process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod, awaited bool,
) (map[string]domain.InterfaceFact, error) {
	plan, err := plan(vmi, pod)
	if err != nil {
		return nil, err
	}
	if awaited {
		plan = plan.Await()
	}
	namespace, err := namespaceOf(process, pod)
	if err != nil {
		return nil, err
	}
	defer func() { _ = namespace.Close() }()
	made, err := network.Ensure(ctx, namespace, plan)
	if err != nil {
		return nil, fromNetwork(err)
	}
	interfaces := make(map[string]domain.InterfaceFact, len(made))
	for name, result := range made {
		interfaces[name] = result.Fact
	}
	return interfaces, nil
}

// Forward gives the guest the ports by which it came.
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

// fromNetwork tells what the cluster's network has not made. It may yet come, and no event tells of it.
func fromNetwork(err error) error {
	var missing *network.MissingInterfaceError
	if errors.As(err, &missing) {
		return &reconciler.Retry{Reason: reconciler.ReasonMissingPodInterface, After: interfaceRetry, Err: err}
	}
	return err
}

// Advertise makes the guest's IPv6 gateway known from now on.
func (n Networks) Advertise(process *hypervisor.Process, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	return n.Keep(pod.UID, func() (network.Advertisement, error) {
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

// plan is the network of a VMI in a Pod. A sidecar is one of the Pod: what the VMI says by now is about its next one.
func plan(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (network.Plan, error) {
	plan, err := network.NewPlan(vmi)
	if err != nil {
		return plan, &reconciler.Terminal{Reason: reconciler.ReasonInvalidNetwork, Err: err}
	}
	if podspec.HasSidecar(pod.Labels) {
		plan = plan.BehindSidecar()
	}
	return plan, nil
}

// namespaceOf goes through the descriptor of the checked process: its number could belong to another one by now. A Pod on the node's
// network is none that virt-controller has made.
func namespaceOf(process *hypervisor.Process, pod *corev1.Pod) (*network.Namespace, error) {
	if pod.Spec.HostNetwork {
		return nil, &reconciler.Terminal{Reason: reconciler.ReasonInvalidNetwork,
			Err: fmt.Errorf("pod %s is on the node's network (hostNetwork): %w", pod.Name, network.ErrNodesNamespace)}
	}
	return network.OpenNamespaceFile(fmt.Sprintf("/proc/self/fd/%d/ns/net", process.Dir.Fd()))
}
