// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/jobs"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/outcome"
)

const (
	// MaxVMIs is how many VMIs are reconciled at a time. It is more than a node can have, so that a reconciliation that
	// waits for a libvirtd or for storage delays no other VMI. A kubelet runs 110 Pods by default and none supports
	// more than 500. An idle worker takes 4 KiB.
	MaxVMIs = 512
	// apiSlots is how many reconciliations use the API server at a time. Namespaces share them fairly.
	apiSlots = 10
	// firstRetry and maxRetry are the delays after a failure. They are controller-runtime's, without its rate limit on
	// the retries of all objects together, which the failures of one tenant would use up.
	firstRetry, maxRetry = 5 * time.Millisecond, 1000 * time.Second
	// reportTimeout bounds the write of a status, with the wait for a slot.
	reportTimeout = 30 * time.Second
	// writeBurst is how many writes of a VMI's status may follow each other without a delay. Most of the status comes
	// from the launcher, and a compromised launcher can report a change after every write. A guest that boots, gets its
	// addresses and is paused and resumed takes fewer than ten writes.
	writeBurst = 20
	// writePause is the time between two writes beyond that. It doubles with each delayed write, up to maxWritePause:
	// if all 110 launchers of a node do this, they use a fifth of the agent's request budget.
	writePause, maxWritePause = time.Second, 10 * time.Second
)

// Options are the dependencies and settings of a Reconciler.
type Options struct {
	// Client reads the node's VMIs, launcher Pods and attachment Pods from a cache and writes status.
	Client client.Client
	// APIReader reads from the API server. The cache contains only VMIs that are assigned to the node.
	APIReader client.Reader
	// Incoming contains the VMIs that migrate to the node. It is a cache of its own, because a cache has one selector
	// for a kind.
	Incoming cache.Cache
	// Node is the node's name.
	Node string
	// Address is where the agents of other nodes reach this one.
	Address string
	// Peer sends requests to the agents of other nodes.
	Peer Peer
	// Targets are the prepared targets of migrations to this node.
	Targets *peer.Targets
	// Enqueue triggers a reconciliation of a VMI. It must not block.
	Enqueue func(types.NamespacedName)
	// Facts are the facts about the node.
	Facts facts.Node
	// Connections connects to the libvirtds of launcher Pods.
	Connections Connections
	// Responses is the memory budget for large responses of launchers. It is required.
	Responses *hypervisor.ResponseBudget
	// Networks connects guests to their Pod's network.
	Networks Networks
	// Content reads the volumes of a Pod that contain files.
	Content func(pod types.UID) media.Content
	// Files returns access to the files of a Pod.
	Files func(pod types.UID) Files
	// Checksum reads a file of an image in a launcher Pod.
	Checksum peer.ChecksumFunc
	// ExporterTLS returns the configuration of one connection to the exporter with a name, which reads the disks of a
	// guest. Without it, none can.
	ExporterTLS func(serverName string) (*tls.Config, error)
	// Config returns the cluster's configuration.
	Config func() clusterconfig.Config
	// Recorder records events.
	Recorder events.EventRecorder
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
}

// Reconciler runs the VMIs of one node.
type Reconciler struct {
	Options

	// transfers are the migrations of which this node is the source.
	transfers *migrate.Transfers
	// devices are those of the node's guests, as jobs are.
	devices *devices.Devices
	jobs    *jobs.Jobs
	// api limits how many reconciliations use the API server. What a migration or a stop needs at once does not wait
	// for it.
	api *limits.Queue
	// syncs counts the reconciliations.
	syncs metrics.Syncs

	mu   sync.Mutex
	pods map[types.UID]*podCache
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &Reconciler{Options: o, pods: map[types.UID]*podCache{}, api: limits.NewQueue(apiSlots)}
	r.syncs.Exists = func(_ context.Context, key types.NamespacedName) bool {
		return len(r.podCaches(func(cache *podCache) bool { return cache.key == key })) > 0
	}
	r.devices = &devices.Devices{
		Client: o.Client, Node: o.Node, Facts: o.Facts, Networks: o.Networks, Enqueue: o.Enqueue,
		Files: func(pod types.UID) devices.Files { return o.Files(pod) },
	}
	r.jobs = jobs.New(jobs.Options{Clock: o.Clock, Enqueue: o.Enqueue, ExporterTLS: o.ExporterTLS})
	r.transfers = migrate.NewTransfers(migrate.Options{
		Peer: o.Peer, Enqueue: o.Enqueue, RecordMode: r.recordMode, OnMigrated: r.transferOwnership, Checksum: o.Checksum,
		RecordEvent:  r.recordMigrating,
		DetectStalls: func() bool { return o.Config().IsEnabled(clusterconfig.GateStallDetection) },
	})
	return r
}

// Metrics returns the metrics of the reconciler, of the migrations of which this node is the source, and of guests that
// wait.
func (r *Reconciler) Metrics() []prometheus.Collector {
	return []prometheus.Collector{
		&r.syncs, r.transfers.Metrics(r.Node),
		&guestmetrics.WaitingCollector{Node: r.Node, Guests: r.Waiting, Clock: r.Clock},
	}
}

// SetupWithManager registers the reconciler, with triggers as the source of VMIs that are passed to Options.Enqueue.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, triggers *Triggers) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, PodIndex, IndexPod); err != nil {
		return fmt.Errorf("index Pods by their VMI: %w", err)
	}
	for _, runnable := range append(r.jobs.Runnables(), r.transfers) {
		if err := mgr.Add(runnable); err != nil {
			return err
		}
	}
	incoming := source.Kind(r.Incoming, &v1.VirtualMachineInstance{},
		&handler.TypedEnqueueRequestForObject[*v1.VirtualMachineInstance]{})
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineinstance").
		For(&v1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(requestOfPod)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.requestOfAttachment),
			builder.WithPredicates(devices.StartsOrIsReady)).
		WatchesRawSource(incoming).
		WatchesRawSource(triggers).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: MaxVMIs,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry,
				maxRetry),
		}), r.syncs.Wrap(r))
}

// Reconcile brings one VMI a step closer to its spec and reports its state.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// The scope keeps parsed responses of the launcher, so their memory is released at the end.
	ctx, release := r.Responses.StartConversation(ctx, req.Namespace)
	defer release()
	s, err := r.read(ctx, req.NamespacedName)
	if err != nil || s == nil {
		return outcome.Result(ctx, err)
	}
	phaseErr := r.runPhases(ctx, s)
	monitor(s)
	noteWaiting(s)
	delay, err := r.report(ctx, s, phaseErr)
	// A failed report is retried at once, even if the phases ended with a Wait. What a phase waits for does not depend
	// on which later one has failed.
	return outcome.Result(ctx, errors.Join(phaseErr, err), delay, s.Requeue)
}

// step is a phase of a reconciliation. An error, which may be a Wait or a Requeue, ends the reconciliation.
type step struct {
	name string
	run  func() error
}

// runPhases runs the phases in order until one of them ends the reconciliation.
func (r *Reconciler) runPhases(ctx context.Context, s *scope) error {
	if r.isMigrated(s) {
		s.Assigned = false
		return &outcome.Wait{Reason: "the migration's target to own the guest"}
	}
	// Without a connection to libvirtd, the guest's state is unknown and nothing is changed.
	if err := r.connect(s); err != nil {
		return r.endReconciliation(ctx, s, "connect", err)
	}
	c := s.connection
	for _, p := range []step{
		// 1. All other phases depend on the domain: an earlier agent may have started the guest.
		{"read domain", func() error { return s.ReadDomain(ctx, c) }},
		// 2. Before all that starts or stops the guest: while it migrates, the migration decides that.
		{"migrate", func() error { return r.migrate(ctx, s) }},
		// 3. Before the shutdown, during which a guest that an earlier agent started needs its gateway too.
		{"advertise gateway", func() error { return r.advertise(ctx, s) }},
		// 4. Before the phases that lead to a start: a VMI that is being deleted must not be started.
		{"shut down", func() error { return r.shutdown(ctx, s, c) }},
		// 5. Before all that leads to a start, so that it is repeated together.
		{"wait after a failed start", func() error { return s.awaitStart() }},
		// The network and the disks are prepared before virt-controller assigns the VMI, which makes starts faster.
		{"prepare network", r.toStart(s, func() error { return r.prepareNetwork(ctx, s) })},
		{"prepare disks", r.toStart(s, func() error { return r.prepareDisks(ctx, s, c) })},
		// 6. Once there is a network and before the guest boots, because it solicits routers then.
		{"advertise gateway", func() error { return r.advertise(ctx, s) }},
		// 7. Before the start: the guest of a migration is not started on its target.
		{"receive migration", func() error { return r.prepareTarget(ctx, s) }},
		// 8. virt-controller attaches volumes to the node once the VMI is assigned and has an SELinux context.
		{"read SELinux context", r.toStart(s, func() error { return r.readSELinux(ctx, s) })},
		{"mount hotplugged volumes", func() error { return mountBeforeStart(ctx, s) }},
		// 9. Only for a VMI that is assigned to the agent, and once in the life of a Pod.
		{"start domain", r.toStart(s, func() error { return r.startDomain(ctx, s, c) })},
		// 10. Before the phases that need to know whether the guest runs.
		{"recover from I/O error", func() error { return r.recoverFromIOError(ctx, s, c) }},
		{"recover from API error", func() error { return r.recoverFromAPIError(ctx, s, c) }},
		{"observe guest", func() error { return r.observeGuest(ctx, s, c) }},
		// 11. Before the phases that change the guest: libvirt refuses all of that during a dump, after a long wait.
		{"dump memory", func() error { return s.jobs.DumpMemory(ctx, c, s.devices.IsMounted) }},
		// 12. After the disks were measured by observe guest.
		{"grow disks", func() error { return s.devices.GrowDisks(ctx, c) }},
		// 13. Last, and each even if another one fails: if libvirt refuses to change an interface or the guest's size,
		// or the node the priority, that must prevent no other phase, least of all the end of a freeze or of a backup
		// whose claim is almost full. All also apply to a guest that an earlier agent started.
		{"forward ports, serve probes, snapshots and backups, set interfaces, realtime priority, size and disks", func() error {
			s.jobs.FreezeForSnapshot(c)
			return errors.Join(r.readSELinux(ctx, s), r.forwardPorts(ctx, s), r.pauseProbes(ctx, s, c),
				s.jobs.BackUpDisks(ctx, c), s.devices.PlugInterfaces(ctx, c), s.devices.SetLinks(ctx, c),
				s.devices.SetRealtime(ctx), s.devices.Resize(ctx, c),
				s.devices.PlugVolumes(ctx, c))
		}},
	} {
		if err := p.run(); err != nil {
			return r.endReconciliation(ctx, s, p.name, err)
		}
	}
	return nil
}

// connect opens the connection to the Pod's libvirtd. While it is being made, the reconciliation waits and reports
// nothing. If it cannot be made, the guest's state is unknown and nothing else is changed.
func (r *Reconciler) connect(s *scope) error {
	connection, err := r.Connections.Open(hypervisor.PodRef{UID: s.Pod.UID, VMI: s.Key})
	if errors.Is(err, hypervisor.ErrConnecting) {
		return &outcome.Wait{Reason: "libvirtd of the launcher Pod"}
	}
	if err != nil {
		// The VMI is enqueued when the connection is back.
		return &phase.UnreachableError{Err: err}
	}
	s.connection = connection
	return nil
}

// endReconciliation logs which phase ended the reconciliation, and returns the error.
func (r *Reconciler) endReconciliation(ctx context.Context, s *scope, name string, phaseErr error) error {
	log.FromContext(ctx).V(4).Info("Phase ends the reconciliation", "phase", name, "reason", phaseErr.Error())
	phaseErr = phase.FromBroker(phaseErr)
	return r.refuseMigrationIfTerminal(ctx, s, phaseErr)
}

// recordMigrating records an event about a migration of which this node is the source.
func (r *Reconciler) recordMigrating(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, action, message string) {
	r.Recorder.Eventf(vmi, nil, corev1.EventTypeNormal, string(reason), action, "%s", message)
}

// stamp returns the current time in the precision of the API.
func (r *Reconciler) stamp() metav1.Time { return metav1.NewTime(r.Clock.Now().Truncate(time.Second)) }

func (r *Reconciler) podCacheOf(pod *corev1.Pod) *podCache {
	r.mu.Lock()
	defer r.mu.Unlock()
	cache, ok := r.pods[pod.UID]
	if !ok {
		cache = newPodCache(types.NamespacedName{Namespace: pod.Namespace, Name: ownerVMI(pod).Name}, pod.Name)
		r.pods[pod.UID] = cache
	}
	return cache
}

func domainName(key types.NamespacedName) string {
	return launcherpod.DomainName(key.Namespace, key.Name)
}
