// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/recorder"
	"github.com/vireo-project/vireo/internal/component/requestlimit"
	"github.com/vireo-project/vireo/internal/controller/fleet/virtualmachineinstancereplicaset"
	"github.com/vireo-project/vireo/internal/controller/fleet/virtualmachinepool"
	"github.com/vireo-project/vireo/internal/controller/install/certificatesigningrequest"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/controller/migration/evacuation"
	"github.com/vireo-project/vireo/internal/controller/migration/virtualmachineinstancemigration"
	"github.com/vireo-project/vireo/internal/controller/migration/workloadupdate"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinebackup"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineclone"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineexport"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinerestore"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinesnapshot"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinesnapshotcontent"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/optimistic"
	webhookserver "github.com/vireo-project/vireo/internal/webhook/server"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
)

// componentName is the name of this process in events, of its Lease and as a field manager.
const componentName = "virt-controller"

// Service accounts of the components, whose writes the webhooks trust.
const (
	controllerAccount = "kubevirt-controller"
	handlerAccount    = "kubevirt-handler"
	apiAccount        = "kubevirt-apiserver"
)

// gcPercent is by how much the heap may grow before garbage is collected. Most of the heap is a cache of the cluster's
// objects, so that Go's default of 100 would let virt-controller take twice its size.
const gcPercent = 40

// Run runs virt-controller until the context ends.
func Run(ctx context.Context, config *rest.Config, o *Options, l *livelog.Log) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	restarts, err := restartsContainers(config)
	if err != nil {
		return err
	}
	other, err := await(ctx, config, o, l.Logger)
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // it was stopped while it waited
	case err != nil:
		return err
	}
	store := clusterconfig.NewStore(o.images(), clusterconfig.WithContainerRestarts(restarts),
		clusterconfig.WithLiveMetadata(o.LiveMetadata))
	limiter := requestlimit.New(store.Current().RateLimits.Controller)
	certificates := NewCertificates(o)
	mgr, err := newManager(config, limiter, o, certificates, store)
	if err != nil {
		return fmt.Errorf("cannot make the manager: %w", err)
	}

	if err := mgr.Add(onEveryReplica(other.Watch)); err != nil {
		return err
	}
	// 1. The configuration is read before anything uses it.
	if err := store.Load(ctx, mgr.GetAPIReader(), o.Namespace); err != nil {
		return fmt.Errorf("%w (are the CRDs installed?)", err)
	}
	store.Subscribe(l.Subscriber(func(v clusterconfig.Verbosity) uint { return v.Controller }))
	store.Subscribe(limiter.Subscriber(
		func(limits clusterconfig.RateLimits) clusterconfig.RateLimit { return limits.Controller }))
	if err := mgr.Add(store.Follow(mgr.GetCache(), o.Namespace)); err != nil {
		return err
	}
	// 2. Webhooks are registered at once; handshakes with their server succeed when there is a certificate.
	if err := certificates.Setup(mgr, o, store); err != nil {
		return fmt.Errorf("cannot set up certificates: %w", err)
	}
	if err := setupWebhooks(mgr, o, store); err != nil {
		return fmt.Errorf("cannot set up webhooks: %w", err)
	}
	instances, err := setupReconcilers(mgr, o, store)
	if err != nil {
		return err
	}
	if err := setupHealth(mgr, certificates); err != nil {
		return err
	}
	if err := setupMetrics(mgr, o, certificates, store, instances.Metrics()); err != nil {
		return err
	}
	if err := setupTracing(ctx, mgr, l.Logger); err != nil {
		return err
	}
	l.Info("Starting virt-controller", "namespace", o.Namespace, "launcherImage", o.LauncherImage, "handlerImage",
		o.HandlerImage, "brokerImage", o.BrokerImage, "apiImage", o.APIImage)
	return mgr.Start(ctx)
}

// setupWebhooks registers the webhooks. They have clients with a rate limit of their own, so that reconcilers do not
// delay them.
func setupWebhooks(mgr ctrl.Manager, o *Options, store *clusterconfig.Store) error {
	limiter := requestlimit.New(store.Current().RateLimits.Webhook)
	store.Subscribe(limiter.Subscriber(
		func(limits clusterconfig.RateLimits) clusterconfig.RateLimit { return limits.Webhook }))
	config := limiter.Config(mgr.GetConfig())
	options := client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()}
	direct, err := client.New(config, options)
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	options.Cache = &client.CacheOptions{Reader: mgr.GetCache()}
	cached, err := client.New(config, options)
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	return webhookv1.SetupWithManager(mgr, webhookv1.Options{
		Config:       store,
		TrustedUsers: webhookv1.ServiceAccounts(o.Namespace, controllerAccount, handlerAccount, apiAccount),
		Client:       cached, APIReader: direct,

		LiveMigration: true,
	})
}

func newManager(
	config *rest.Config, limiter *requestlimit.Limiter, o *Options, certificates *Certificates, store *clusterconfig.Store,
) (ctrl.Manager, error) {
	lease, err := newLease(config, o)
	if err != nil {
		return nil, err
	}
	limited := limiter.Config(config)
	metrics.CountRequests(limited)
	mgr, err := ctrl.NewManager(limited, ctrl.Options{
		Scheme:                              NewScheme(),
		Controller:                          ctrlconfig.Controller{SkipNameValidation: &o.SkipNameValidation},
		Cache:                               cacheOptions(o.Namespace),
		LeaderElection:                      o.LeaderElection,
		LeaderElectionID:                    leaderElectionID, // in the library's metrics
		LeaderElectionResourceLockInterface: lease,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       ptr.To(leaseDuration),
		RenewDeadline:                       ptr.To(renewDeadline),
		RetryPeriod:                         ptr.To(retryPeriod),
		Metrics:                             metricsserver.Options{BindAddress: "0"}, // setupMetrics adds a server
		WebhookServer: webhookserver.New(webhookserver.Options{
			Address: net.JoinHostPort("", strconv.Itoa(o.WebhookPort)), Webhook: certificates.Webhook,
			TLS: []func(*tls.Config){certificates.serve, store.RestrictTLS},
		}),
	})
	if err != nil {
		return nil, err
	}
	return health.WithProbes(mgr, net.JoinHostPort("", strconv.Itoa(o.HealthPort)))
}

// setupReconcilers adds the reconcilers, and returns that of VMIs.
func setupReconcilers(
	mgr ctrl.Manager, o *Options, store *clusterconfig.Store,
) (*virtualmachineinstance.Reconciler, error) {
	recorded, err := recorder.Add(mgr, corev1.EventSource{Component: componentName})
	if err != nil {
		return nil, err
	}
	// The names of KubeVirt's controllers, since tools select events by them.
	source := func(component string) events.EventRecorder {
		return recorded.WithSource(corev1.EventSource{Component: component})
	}
	imports := datavolume.NewStore(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
	if err := mgr.Add(imports); err != nil {
		return nil, err
	}
	snapshots := volumesnapshot.NewStore(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
	if err := snapshots.AddTo(mgr); err != nil {
		return nil, err
	}
	exporters, err := virtualmachineexport.NewPodCache(mgr)
	if err != nil {
		return nil, err
	}
	installation := &kubevirt.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Namespace: o.Namespace, KubeletRoot: o.KubeletRoot,
		Options: []clusterconfig.Option{o.images()}, Recorder: source("virt-operator"), Clock: o.Clock,
		MetricsAuthorization: o.MetricsAuthorization, RunbookURL: o.RunbookURL,
	}
	// Shared, since the reconciler of VMs writes VMIs too.
	ownWrites := optimistic.Client(mgr.GetClient(), &v1.VirtualMachine{}, &v1.VirtualMachineInstance{})
	instances := &virtualmachineinstance.Reconciler{
		Client: ownWrites, APIReader: mgr.GetAPIReader(), Recorder: source("virtualmachine-controller"), Config: store,
		Namespace: o.Namespace, DataVolumes: imports, AgentRecorder: agentOf(recorded),
	}
	reconcilers := []settable{
		installation,
		&node.Reconciler{
			Client: mgr.GetClient(), Recorder: source("node-controller"), Namespace: o.Namespace, Config: store,
		},
		&certificatesigningrequest.Reconciler{Client: mgr.GetClient(), Namespace: o.Namespace, Config: store, Clock: o.Clock},
		&virtualmachine.Reconciler{
			Client: ownWrites, APIReader: mgr.GetAPIReader(), Recorder: source("virtualmachine-controller"), Config: store,
			DataVolumes: imports, VolumeSnapshots: snapshots,
		},
		&virtualmachineinstancereplicaset.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: source("virtualmachinereplicaset-controller"),
		},
		&virtualmachinepool.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: source("virtualmachinepool-controller"),
			Clock: o.Clock,
		},
		instances,
		&virtualmachineexport.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Pods: exporters, Recorder: source("export-controller"),
			DataVolumes: imports, VolumeSnapshots: snapshots, Config: store, Namespace: o.Namespace, Clock: o.Clock,
		},
	}
	all := slices.Concat(reconcilers,
		snapshotReconcilers(mgr, o, source, imports, snapshots, exporters),
		migrationReconcilers(mgr, o, source, store, installation.DeploymentID))
	for _, r := range all {
		if err := r.SetupWithManager(mgr); err != nil {
			return nil, fmt.Errorf("cannot set up %T: %w", r, err)
		}
	}
	return instances, nil
}

// settable is a reconciler.
type settable interface{ SetupWithManager(mgr ctrl.Manager) error }

// snapshotReconcilers returns the reconcilers of snapshots, restores, clones and backups. source returns the recorder
// of a component.
func snapshotReconcilers(
	mgr ctrl.Manager, o *Options, source func(component string) events.EventRecorder, imports *datavolume.Store,
	snapshots *volumesnapshot.Store, exporters virtualmachineexport.PodCache,
) []settable {
	snapshotRecorder := source("snapshot-controller")
	return []settable{
		&virtualmachinesnapshot.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: snapshotRecorder, VolumeSnapshots: snapshots,
			DataVolumes: imports, Clock: o.Clock,
		},
		&virtualmachinesnapshotcontent.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: snapshotRecorder, VolumeSnapshots: snapshots,
			Clock: o.Clock,
		},
		&virtualmachinerestore.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: source("restore-controller"), DataVolumes: imports,
			VolumeSnapshots: snapshots, Clock: o.Clock,
		},
		&virtualmachineclone.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: source("clone-controller"), Clock: o.Clock,
		},
		&virtualmachinebackup.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Pods: exporters, Recorder: source("vmbackup-controller"),
			Clock: o.Clock,
		},
	}
}

// migrationReconcilers returns the reconcilers that migrate VMIs and start migrations. source returns the recorder of a
// component.
func migrationReconcilers(
	mgr ctrl.Manager, o *Options, source func(component string) events.EventRecorder, store *clusterconfig.Store,
	deployment func(*v1.KubeVirt) (string, error),
) []settable {
	return []settable{
		&virtualmachineinstancemigration.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: source("virtualmachine-controller"), Config: store,
		},
		&evacuation.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: source("disruptionbudget-controller"),
			Config: store,
		},
		&workloadupdate.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: source("workload-update-controller"),
			Config: store, Namespace: o.Namespace, DeploymentID: deployment,
		},
	}
}

// agentOf returns a function that returns the recorder of events which virt-controller records in place of a node's
// agent.
func agentOf(recorded *recorder.Recorder) func(node string) events.EventRecorder {
	return func(node string) events.EventRecorder {
		return recorded.WithSource(corev1.EventSource{Component: "virt-handler", Host: node})
	}
}

func setupHealth(mgr ctrl.Manager, certificates *Certificates) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("webhooks-listen", mgr.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("webhooks", certificates.Ready)
}
