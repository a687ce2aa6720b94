// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/observe"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/metrics"
)

// queues are KubeVirt's names of the work queues, by the names of the controllers.
var queues = map[string]string{"virtualmachineinstance": "virt-handler-vm"}

// setupMetrics adds the server of the metrics and of the health check.
func setupMetrics(mgr ctrl.Manager, o *Options, store *clusterconfig.Store, collectors []prometheus.Collector) error {
	api, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	return metrics.AddServer(mgr, metrics.Options{
		Address: o.metricsAddress(), RestrictTLS: store.RestrictTLS, Queues: queues, Authorize: o.MetricsAuthorization,
		Collectors: collectors,
		Health:     &health.Check{APIServer: api, ConfigVersion: store.Version},
	})
}

// GuestMetrics returns the metrics of what a node's guests use.
func GuestMetrics(
	node string, guests *agentvmi.Reconciler, connections *rpc.Manager, labels *metrics.LabelFilter,
) *guestmetrics.Collector {
	return guestmetrics.New(guestmetrics.Options{
		Node: node, Guests: guests.Monitored, Labels: labels,
		Read: func(ctx context.Context, guest *guestmetrics.Guest, dirtyRate bool) (*hypervisor.Stats, error) {
			conn, err := connections.IfConnected(guest.Pod.UID)
			if err != nil {
				return nil, err
			}
			return conn.Stats(ctx, guest.Domain, dirtyRate)
		},
		Usage: func(guest *guestmetrics.Guest) *hypervisor.GuestUsage {
			conn, err := connections.IfConnected(guest.Pod.UID)
			if err != nil {
				return nil
			}
			return conn.Usage()
		},
	})
}

// nodeCollectors returns the metrics of the process and of the node. brokerResponds reports whether the node's
// virt-broker responds.
func nodeCollectors(mgr ctrl.Manager, o *Options, brokerResponds func() bool) []prometheus.Collector {
	deprecated, err := observe.DeprecatedMachineTypes(o.CapabilitiesDir)
	if err != nil {
		ctrl.Log.WithName(name).Error(err, "The node's deprecated machine types are not known")
	}
	return guestmetrics.Node(o.Node, deprecated, health.Ready(mgr), brokerResponds)
}
