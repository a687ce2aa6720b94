// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/agent/server"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// Connections opens connections for the reconciler.
type Connections struct{ *rpc.Manager }

// Open returns the connection to a Pod.
func (c Connections) Open(pod hypervisor.PodRef) (agentvmi.Connection, error) {
	conn, err := c.Connect(pod)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// Served opens connections for the server of virt-api's requests.
type Served struct{ *rpc.Manager }

// Open returns the connection to a Pod, and waits while it is being made.
func (m Served) Open(ctx context.Context, pod hypervisor.PodRef) (server.Connection, error) {
	conn, err := m.WaitConnected(ctx, pod)
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
		return &outcome.Retry{Reason: agentvmi.ReasonMissingPodInterface, After: interfaceRetry, Err: err}
	case brokerapi.CodeOf(err) == brokerapi.CodeNodesNetwork:
		return &outcome.Terminal{Reason: agentvmi.ReasonInvalidNetwork, Err: err}
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

// plan returns the network plan of a VMI in a Pod. The Pod, not the VMI, determines whether there is a sidecar: a
// change of the VMI affects its next Pod only. It rejects Pods on the node's network, which virt-controller does not
// create; the broker does too.
func plan(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (network.Plan, error) {
	if pod.Spec.HostNetwork {
		return network.Plan{}, &outcome.Terminal{Reason: agentvmi.ReasonInvalidNetwork,
			Err: fmt.Errorf("pod %s is on the node's network (hostNetwork): a launcher Pod has one of its own", pod.Name)}
	}
	plan, err := network.NewPlan(vmi)
	if err != nil {
		return plan, &outcome.Terminal{Reason: agentvmi.ReasonInvalidNetwork, Err: err}
	}
	if podspec.HasSidecar(pod.Labels) {
		plan = network.WithSidecar(plan)
	}
	return plan, nil
}

// migrations has what the agent needs to migrate guests.
type migrations struct {
	own      *certificate.Source
	trust    certificate.Trust
	incoming cache.Cache
	peers    *peer.Client
	targets  *peer.Targets
}

func newMigrations(mgr ctrl.Manager, o *Options, store *clusterconfig.Store) (*migrations, error) {
	m := &migrations{trust: certificate.Trust(o.TrustDir), targets: peer.NewTargets()}
	m.own = certificate.NewSource(mgr.GetConfig(), certificate.AgentMigration, certificate.AgentMigrationSubject(o.Node),
		m.trust)
	m.own.Lifetimes = store.Certificates
	m.peers = peer.NewClient(
		func(node string) (*tls.Config, error) { return certificate.MigrationClient(m.own, m.trust, node) }, o.MigrationPort)
	var err error
	m.incoming, err = incomingCache(mgr, o.Node)
	if err != nil {
		return nil, err
	}
	if err := mgr.AddReadyzCheck("migration-certificate", m.own.Ready); err != nil {
		return nil, err
	}
	for _, runnable := range []interface{ Start(context.Context) error }{m.own, m.incoming} {
		if err := mgr.Add(runnable); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// IncomingOptions are the options of the cache of VMIs that migrate to the node. The manager's cache has those that run
// on the node: a cache supports one selector for a kind.
func IncomingOptions(node string) cache.Options {
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&v1.VirtualMachineInstance{}: {
				Field: fields.OneTermEqualSelector("status.migrationState.targetNode", node), Transform: slimVMI,
			},
		},
	}
}

func incomingCache(mgr ctrl.Manager, node string) (cache.Cache, error) {
	options := IncomingOptions(node)
	options.HTTPClient, options.Scheme, options.Mapper = mgr.GetHTTPClient(), mgr.GetScheme(), mgr.GetRESTMapper()
	incoming, err := cache.New(mgr.GetConfig(), options)
	if err != nil {
		return nil, fmt.Errorf("create the cache of VMIs that migrate to the node: %w", err)
	}
	return incoming, nil
}

// serve adds the server for the agents of other nodes from which guests migrate to this one.
func (m *migrations) serve(
	mgr ctrl.Manager, o *Options, connections *rpc.Manager, broker *brokerclient.Client, guests *agentvmi.Reconciler,
	checksum peer.ChecksumFunc,
) error {
	served, err := peer.NewServer(peer.ServerOptions{
		TLS: certificate.MigrationServer(m.own, m.trust), PeerNode: certificate.PeerNode,
		Address: o.migrationAddress(), Node: o.Node,
		Incoming: m.incoming, Targets: m.targets,
		Open:     func(pod hypervisor.PodRef) (peer.Launcher, error) { return connections.Connect(pod) },
		Tunnel:   connections.Tunnel,
		Run:      guests.RunReleased,
		Checksum: checksum,
		PostCopy: func(ctx context.Context, pod hypervisor.PodRef) bool {
			has, err := broker.Files(pod.UID).HasDevice(ctx, launcherpod.PostCopyDevice)
			return err == nil && has
		},
	})
	if err != nil {
		return err
	}
	return mgr.Add(served)
}

// checksums returns a function for the checksums of files in launcher Pods. It reads each file once.
func checksums(broker *brokerclient.Client) peer.ChecksumFunc {
	read := peer.ChecksumFunc(func(ctx context.Context, pod hypervisor.PodRef, mount, name string) (peer.Checksum, error) {
		size, crc, err := facts.Sum(ctx, broker, pod, mount, name)
		return peer.Checksum{Size: size, CRC32: crc}, err
	})
	return read.Cached()
}
