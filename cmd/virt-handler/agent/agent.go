// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/agent/observe"
	"github.com/vireo-project/vireo/internal/agent/server"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/component/recorder"
	"github.com/vireo-project/vireo/internal/component/requestlimit"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const (
	// firstConnections is the time over which an agent that starts distributes its connections to existing launchers.
	firstConnections = 3 * time.Second
	// name is the agent's name in events.
	name = "virt-handler"
)

// Run runs the agent until the context is done. Guests continue to run.
func Run(ctx context.Context, config *rest.Config, o *Options, l *livelog.Log) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if err := preparePrivate(o); err != nil {
		return err
	}
	store := clusterconfig.NewStore()
	limiter := requestlimit.New(store.Current().RateLimits.Handler)
	config = limiter.Config(config)
	metrics.CountRequests(config)
	mgr, err := newManager(config, o)
	if err != nil {
		return fmt.Errorf("cannot make the manager: %w", err)
	}
	// The configuration is read before anything uses it.
	if err := store.Load(ctx, mgr.GetAPIReader(), o.Namespace); err != nil {
		return err
	}
	store.Subscribe(l.Subscriber(func(v clusterconfig.Verbosity) uint { return v.HandlerOn(o.Node) }))
	store.Subscribe(limiter.Subscriber(
		func(limits clusterconfig.RateLimits) clusterconfig.RateLimit { return limits.Handler }))
	if err := mgr.Add(store.Follow(mgr.GetCache(), o.Namespace)); err != nil {
		return err
	}
	broker := brokerclient.New(brokerapi.SocketDir(o.KubeletRoot))
	guests, err := setupReconciler(mgr, o, store, broker)
	if err != nil {
		return err
	}
	devices, err := setupNode(mgr, o, broker, guests.brokerResponds)
	if err != nil {
		return err
	}
	if err := setupMetrics(mgr, o, store,
		append(guests.collectors, nodeCollectors(mgr, o, devices.Responds)...)); err != nil {
		return err
	}
	for _, add := range []func(string, healthz.Checker) error{mgr.AddHealthzCheck, mgr.AddReadyzCheck} {
		if err := add("ping", healthz.Ping); err != nil {
			return err
		}
	}
	l.Info("Starting virt-handler", "node", o.Node, "namespace", o.Namespace)
	until, stop := (&drain{node: o.Node, limit: drainLimit, log: l.Logger,
		caches: []cache.Cache{mgr.GetCache(), guests.incoming}}).after(ctx)
	defer stop()
	return mgr.Start(until)
}

// preparePrivate creates the agent's private directories. Media contain users' secrets, so they are created in memory.
func preparePrivate(o *Options) error {
	temp := filepath.Join(o.PrivateDir, "tmp")
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return fmt.Errorf("cannot make the agent's private directory: %w", err)
	}
	return os.Setenv("TMPDIR", temp)
}

func newManager(config *rest.Config, o *Options) (ctrl.Manager, error) {
	scheme := apiruntime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := v1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Cache:   CacheOptions(o),
		Metrics: metricsserver.Options{BindAddress: "0"}, // setupMetrics adds a server
	})
	if err != nil {
		return nil, err
	}
	return health.WithProbes(mgr, net.JoinHostPort("", strconv.Itoa(o.HealthPort)))
}

// CacheOptions limit the cache to objects of the node.
func CacheOptions(o *Options) cache.Options {
	app, err := labels.NewRequirement(v1.AppLabel, selection.In,
		[]string{launcherpod.AppLabelValue, launcherpod.AttachmentLabelValue})
	utilruntime.Must(err) // the values are constants
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1.VirtualMachineInstance{}: {Field: fields.OneTermEqualSelector("status.nodeName", o.Node), Transform: slimVMI},
			&corev1.Pod{}: {
				// The reconciler handles a Pod that has finished like one that was deleted.
				Field: fields.AndSelectors(
					fields.OneTermEqualSelector("spec.nodeName", o.Node),
					podstate.NotTerminal,
				),
				Label:     labels.NewSelector().Add(*app),
				Transform: slimPod,
			},
			&v1.KubeVirt{}: {Namespaces: map[string]cache.Config{o.Namespace: {}}},
		},
	}
}

// slimVMI removes from a VMI in the cache what the agent does not read, because a tenant determines the size of a VMI:
// the fields for the scheduler and most labels. Of a VMI that has ended, which its owner may keep for long, it keeps
// only what the cleanup needs. The result must not be written back; the agent writes only statuses.
func slimVMI(object any) (any, error) {
	if vmi, ok := object.(*v1.VirtualMachineInstance); ok {
		keepLabels(vmi)
		spec := &vmi.Spec
		spec.NodeSelector, spec.Affinity, spec.Tolerations, spec.TopologySpreadConstraints = nil, nil, nil, nil
		if vmistatus.StageOf(vmi.Status.Phase) == vmistatus.Ended {
			vmi.Annotations = nil
			vmi.Spec = v1.VirtualMachineInstanceSpec{TerminationGracePeriodSeconds: spec.TerminationGracePeriodSeconds}
		}
	}
	return cache.TransformStripManagedFields()(object)
}

// keepLabels keeps as many of a running VMI's labels as metrics can have.
func keepLabels(vmi *v1.VirtualMachineInstance) {
	if vmistatus.StageOf(vmi.Status.Phase) == vmistatus.Ended {
		vmi.Labels = nil
	}
	for i, key := range slices.Sorted(maps.Keys(vmi.Labels)) {
		if i >= metrics.MaxLabels {
			delete(vmi.Labels, key)
		}
	}
}

// podLabels are the labels of launcher Pods that the agent reads.
var podLabels = []string{v1.AppLabel, v1.CreatedByLabel, v1.MigrationJobLabel, podspec.SidecarLabel}

// slimPod keeps of the labels and the spec of a launcher Pod or an attachment Pod what the agent reads. A launcher Pod
// has the VMI's labels.
func slimPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		maps.DeleteFunc(pod.Labels, func(key, _ string) bool { return !slices.Contains(podLabels, key) })
		compute := podstate.ComputeContainer(pod)
		pod.Spec = corev1.PodSpec{
			NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork, ReadinessGates: pod.Spec.ReadinessGates,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
			// All other claims of the VMI are hotplugged.
			Volumes: slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim == nil }),
		}
		if compute != nil {
			pod.Spec.Containers = []corev1.Container{{Name: compute.Name, Resources: resize.Resizable(compute.Resources)}}
		}
	}
	return cache.TransformStripManagedFields()(object)
}

// guests is what the rest of the process needs of the reconciler.
type guests struct {
	// collectors are its metrics.
	collectors []prometheus.Collector
	// incoming is the cache of the VMIs that migrate to the node.
	incoming cache.Cache
	// brokerResponds is called when the broker responds again.
	brokerResponds func()
}

// nodeFacts returns the facts about the node.
func nodeFacts(o *Options) facts.Node {
	cells, err := observe.ReadTopology(o.CapabilitiesDir)
	if err != nil {
		// Not fatal: running guests must be reconciled.
		ctrl.Log.WithName(name).Error(err, "The node's topology is not known, dedicated CPUs are chosen without it")
	}
	return facts.Node{Arch: runtime.GOARCH, NUMACells: cells}
}

// setupReconciler adds the reconciler of the node's guests.
func setupReconciler(
	mgr ctrl.Manager, o *Options, store *clusterconfig.Store, broker *brokerclient.Client,
) (*guests, error) {
	triggers := agentvmi.NewTriggers()
	responses := hypervisor.NewResponseBudget()
	connections, err := addConnections(mgr, o, broker, responses, triggers)
	if err != nil {
		return nil, err
	}
	networks := Networks{Advertisers: network.NewAdvertisers(mgr.GetLogger().WithName("network")), Broker: broker}
	if err := mgr.Add(networks); err != nil {
		return nil, err
	}
	if err := setupServer(mgr, o, store, connections, responses); err != nil {
		return nil, err
	}
	moves, err := newMigrations(mgr, o, store)
	if err != nil {
		return nil, err
	}
	events, err := recorder.Add(mgr, corev1.EventSource{Component: name, Host: o.Node})
	if err != nil {
		return nil, err
	}
	exporters, err := addExporters(mgr, o, store)
	if err != nil {
		return nil, err
	}
	checksum := checksums(broker)
	r := agentvmi.New(agentvmi.Options{
		Client:      mgr.GetClient(),
		APIReader:   mgr.GetAPIReader(),
		Incoming:    moves.incoming,
		Node:        o.Node,
		Address:     o.PodIP,
		Peer:        moves.peers,
		Targets:     moves.targets,
		Enqueue:     triggers.Enqueue,
		Facts:       nodeFacts(o),
		Connections: Connections{connections},
		Responses:   responses,
		Networks:    networks,
		Content:     func(pod types.UID) media.Content { return broker.Content(pod) },
		Files:       func(pod types.UID) agentvmi.Files { return broker.Files(pod) },
		Checksum:    checksum,
		ExporterTLS: exporters,
		Config:      store.Current,
		Recorder:    events,
	})
	if err := moves.serve(mgr, o, connections, broker, r, checksum); err != nil {
		return nil, err
	}
	if err := mgr.Add(&observe.Heartbeat{Client: mgr.GetClient(), Namespace: o.Namespace, Node: o.Node,
		OnReconnect: r.Recheck}); err != nil {
		return nil, err
	}
	labels, err := metrics.AddLabelFilter(mgr, o.Namespace)
	if err != nil {
		return nil, err
	}
	return &guests{
		collectors: append(r.Metrics(), GuestMetrics(o.Node, r, connections, labels),
			&guestmetrics.PanicCollector{Counts: connections.Panics}),
		incoming: moves.incoming, brokerResponds: func() { brokerResponds(connections, r) },
	}, r.SetupWithManager(mgr, triggers)
}

// brokerResponds continues what has failed while the broker did not respond.
func brokerResponds(connections *rpc.Manager, guests *agentvmi.Reconciler) {
	connections.RetryBroker()
	guests.EnqueueAll()
}

// addConnections adds the connections to the libvirtds of this node's launchers to the manager.
func addConnections(
	mgr ctrl.Manager, o *Options, broker *brokerclient.Client, responses *hypervisor.ResponseBudget,
	triggers *agentvmi.Triggers,
) (*rpc.Manager, error) {
	connections, err := rpc.NewManager(rpc.Options{
		Broker: broker, RelayDir: filepath.Join(o.PrivateDir, "r"), Responses: responses, FirstConnections: firstConnections,
	}, triggers.Enqueue)
	if err != nil {
		return nil, err
	}
	return connections, mgr.Add(connections)
}

// addExporters adds the certificate for connections to exporters, and returns their configuration by the exporter's
// name. Without the certificate, no exporter can read disks; all else works, so the Pod is ready.
func addExporters(mgr ctrl.Manager, o *Options, store *clusterconfig.Store) (func(string) (*tls.Config, error), error) {
	trust := certificate.Trust(o.TrustDir)
	own := certificate.NewSource(mgr.GetConfig(), certificate.AgentBackup, certificate.AgentBackupSubject(o.Node), trust)
	own.Lifetimes = store.Certificates
	connect := func(serverName string) (*tls.Config, error) { return certificate.PullClient(own, trust, serverName) }
	return connect, mgr.Add(own)
}

// setupServer adds the server for virt-api. Until it has a certificate, the Pod is not ready and the server does not
// listen, but guests are reconciled. Handshakes fail until it also has an authority to trust.
func setupServer(mgr ctrl.Manager, o *Options, store *clusterconfig.Store, connections *rpc.Manager,
	responses *hypervisor.ResponseBudget) error {
	trust := certificate.Trust(o.TrustDir)
	own := certificate.NewSource(mgr.GetConfig(), certificate.AgentServing, certificate.AgentSubject(o.Node), trust)
	own.Lifetimes = store.Certificates
	if err := mgr.Add(own); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("serving-certificate", own.Ready); err != nil {
		return err
	}
	served, err := server.New(server.Options{
		Profiles: profiler.New(store).Handler(),

		TLS: certificate.AgentServer(own, trust), Ready: own.Issued(),
		Address: o.consoleAddress(), Node: o.Node,
		Client: mgr.GetClient(), Connections: Served{connections}, Responses: responses,
	})
	if err != nil {
		return err
	}
	return mgr.Add(served)
}

// setupNode adds the reports about the node, and returns the state of its devices. brokerResponds is called when the
// broker responds again.
func setupNode(
	mgr ctrl.Manager, o *Options, broker *brokerclient.Client, brokerResponds func(),
) (*brokerclient.Devices, error) {
	capabilities, err := observe.ReadCapabilities(o.CapabilitiesDir, runtime.GOARCH)
	if err != nil {
		// Not fatal: running guests must be reconciled. Without a report virt-controller sets no labels for CPU models.
		ctrl.Log.WithName(name).Error(err, "The node's capabilities are not known, no CPU model is reported")
		capabilities = &agentapi.Capabilities{Arch: runtime.GOARCH}
	}
	devices := brokerclient.NewDevices(broker, brokerResponds)
	if err := mgr.Add(devices); err != nil {
		return nil, err
	}
	if err := mgr.AddReadyzCheck("virt-broker", devices.Ready); err != nil {
		return nil, err
	}
	return devices, mgr.Add(&observe.Reporter{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Namespace: o.Namespace, Node: o.Node,
		Capabilities: *capabilities, Devices: devices.Usable, Changed: devices.Changed(),
		StaticCPUPolicy: broker.HasStaticCPUPolicy, Realtime: observe.RealtimeCapable,
	})
}
