// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/controller/monitoring"
)

// queues are KubeVirt's names of the work queues, by the names of our controllers. Queues of other controllers have the name of
// their controller.
var queues = map[string]string{
	"virtualmachine":                   "virt-controller-vm",
	"virtualmachineinstance":           "virt-controller-vmi",
	"virtualmachineinstancereplicaset": "virt-controller-replicaset",
	"virtualmachinepool":               "virt-controller-pool",
	"virtualmachineinstancemigration":  "virt-controller-migration",
	"evacuation":                       "virt-controller-evacuation",
	"workloadupdate":                   "virt-controller-workload-update",
	"node":                             "virt-controller-node",
	"kubevirt":                         "virt-operator-kubevirt",
}

// setupMetrics adds the server of the metrics and of the health check.
func setupMetrics(
	mgr ctrl.Manager, o *Options, certificates *Certificates, store *clusterconfig.Store, more ...prometheus.Collector,
) error {
	api, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	collectors, err := collectors(mgr, o, store)
	if err != nil {
		return err
	}
	return metrics.AddServer(mgr, metrics.Options{
		Address: o.metricsAddress(), TLS: certificates.serve, RestrictTLS: store.RestrictTLS,
		Queues: queues, Collectors: append(collectors, more...), Authorize: o.MetricsAuthorization,
		Health: &health.Check{APIServer: api, ConfigVersion: store.Version},
	})
}

// collectors adds what the metrics need to the manager, and returns them.
func collectors(mgr ctrl.Manager, o *Options, store *clusterconfig.Store) ([]prometheus.Collector, error) {
	labels, err := metrics.AddLabelFilter(mgr, o.Namespace)
	if err != nil {
		return nil, err
	}
	transitions := monitoring.NewTransitions(mgr.GetCache())
	if err := mgr.Add(transitions); err != nil {
		return nil, err
	}
	process := monitoring.Process(health.Ready(mgr), metrics.Closed(mgr.Elected()), func() bool { return store.Current().UseEmulation })
	return append(append(process, transitions.Collectors()...),
		&monitoring.Collector{
			Reader: mgr.GetCache(), Elected: mgr.Elected(), Config: store.Current, Labels: labels, WebhookSecret: CertificateSecret, Clock: o.Clock,
		}), nil
}
