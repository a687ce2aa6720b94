// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/otlp"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/observe/monitoring"
	"github.com/vireo-project/vireo/internal/controller/observe/tracing"
)

// queues are KubeVirt's names of the work queues, by the names of our controllers. Queues of other controllers have the
// name of their controller.
var queues = map[string]string{
	"virtualmachine":                   "virt-controller-vm",
	"virtualmachineinstance":           "virt-controller-vmi",
	"virtualmachineinstancereplicaset": "virt-controller-replicaset",
	"virtualmachinepool":               "virt-controller-pool",
	"virtualmachinesnapshot":           "virt-controller-snapshot-vmsnapshot",
	"virtualmachinesnapshotcontent":    "virt-controller-snapshot-vmsnapshotcontent",
	"virtualmachineinstancemigration":  "virt-controller-migration",
	"evacuation":                       "virt-controller-evacuation",
	"workloadupdate":                   "virt-controller-workload-update",
	"virtualmachinerestore":            "virt-controller-restore-vmrestore",
	"virtualmachineclone":              "virt-controller-vmclone",
	"virtualmachineexport":             "virt-controller-export-vmexport",
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
		Profiles: profiles(mgr.GetCache(), o, store),

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
	process := monitoring.Process(health.Ready(mgr), metrics.Closed(mgr.Elected()),
		func() bool { return store.Current().UseEmulation })
	return append(append(process, transitions.Collectors()...),
		&monitoring.Collector{
			Reader: mgr.GetCache(), Elected: mgr.Elected(), Config: store.Current, Labels: monitoring.Labels(labels),
			Namespace: o.Namespace, WebhookSecret: certificate.WebhooksSecret, Clock: o.Clock,
		}), nil
}

// profiles serves profiles of this process to virt-api, whose authority is in the ConfigMap that the leader publishes.
func profiles(reader client.Reader, o *Options, store *clusterconfig.Store) http.Handler {
	verify := func(state *tls.ConnectionState) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		trusted := &corev1.ConfigMap{}
		key := client.ObjectKey{Namespace: o.Namespace, Name: certificate.BundleName}
		if err := reader.Get(ctx, key, trusted); err != nil {
			return fmt.Errorf("cannot read ConfigMap %s: %w", key, err)
		}
		return certificate.VerifyAPI(state, []byte(trusted.Data[certificate.APIClient.Name]), kit.Now(o.Clock))
	}
	return profiler.OnlyAPI(verify, profiler.New(store).Handler())
}

// setupTracing adds the export of traces, if the environment configures it. Invalid settings only turn it off.
func setupTracing(ctx context.Context, mgr ctrl.Manager, log logr.Logger) error {
	exporter, err := otlp.New(ctx, componentName, version.Get().GitVersion, log.WithName("tracing"))
	if err != nil {
		log.Error(err, "Traces are off")
		return nil
	}
	if exporter == nil {
		return nil
	}
	return mgr.Add(&tracing.Watcher{Cache: mgr.GetCache(), Exporter: exporter, Clock: clock.RealClock{}})
}
