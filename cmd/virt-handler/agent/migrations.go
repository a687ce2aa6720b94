// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"crypto/tls"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/agent/reconciler"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

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
	m.own = certificate.NewSource(mgr.GetConfig(), certificate.AgentMigration, certificate.AgentMigrationSubject(o.Node), m.trust)
	m.own.Lifetimes = store.Certificates
	m.peers = peer.NewClient(func(node string) (*tls.Config, error) { return certificate.MigrationClient(m.own, m.trust, node) }, o.MigrationPort)
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

// IncomingOptions are the options of the cache of VMIs that migrate to the node. The manager's cache has those that run on the
// node: a cache supports one selector for a kind.
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
	mgr ctrl.Manager, o *Options, connections *rpc.Manager, broker *brokerclient.Client, guests *reconciler.Reconciler, checksum peer.ChecksumFunc,
) error {
	served, err := peer.NewServer(peer.ServerOptions{
		TLS: certificate.MigrationServer(m.own, m.trust), PeerNode: certificate.PeerNode,
		Address: o.migrationAddress(), Node: o.Node,
		Incoming: m.incoming, Targets: m.targets,
		Open:     func(pod hypervisor.PodRef) (peer.Launcher, error) { return connections.Conn(pod) },
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
