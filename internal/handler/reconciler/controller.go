// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/handler/facts"
	"github.com/vireo-project/vireo/internal/handler/handover"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/media"
	"github.com/vireo-project/vireo/internal/handler/turns"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// MaxVMIs is how many VMIs are reconciled at a time: more than a node has, so that each has a goroutine of its own whenever there is
	// something to do for it. What a reconcile waits for, such as a libvirtd or storage, holds up that VMI and no other one. A kubelet
	// runs 110 Pods, and none that is supported more than 500. A worker that has nothing to do takes 4 KiB.
	MaxVMIs = 512
	// apiTurns is how many reconciles use the API server at a time. They take turns by namespace.
	apiTurns = 10
	// firstRetry and maxRetry are the pauses after a failure: those of controller-runtime, which has in addition a limit on the retries
	// of all objects together. One tenant's failures would use that up.
	firstRetry, maxRetry = 5 * time.Millisecond, 1000 * time.Second
	// reportTimeout bounds the write of a status, with the wait for a turn.
	reportTimeout = 30 * time.Second
	// writeBurst is how many writes of a VMI's status may follow each other at once. Almost all that the status says is what the
	// launcher says, and one that was taken over says something else each time that it is asked, which each write leads to. A guest
	// that boots, gets its addresses and is paused and resumed takes fewer than ten.
	writeBurst = 20
	// writePause is the time between two writes beyond that. It doubles with each that had to wait, up to maxWritePause: if all 110
	// launchers of a node lie, that is a fifth of the requests that the agent may send.
	writePause, maxWritePause = time.Second, 10 * time.Second
)

// Options is what a Reconciler works with.
type Options struct {
	// Client reads the node's VMIs and launcher Pods from a cache and writes status.
	Client client.Client
	// Reader reads a VMI before the cache has it: the cache holds what is handed over to the node.
	Reader client.Reader
	// Incoming are the VMIs that migrate to the node, in a cache of their own: a cache has one selector for a kind.
	Incoming cache.Cache
	// Node is the node's name.
	Node string
	// Address is where the agents of other nodes reach this one.
	Address string
	// Peers reaches the agents of other nodes.
	Peers handover.Peers
	// Arrivals are the guests that are expected.
	Arrivals *handover.Arrivals
	// Notify brings a VMI back. It must not block.
	Notify func(types.NamespacedName)
	// Facts is what is known about the node.
	Facts facts.Node
	// Machines leads to the hypervisors.
	Machines Machines
	// Answers shares the memory for answers of launchers that are not small.
	Answers *hypervisor.Answers
	// Networks connects guests.
	Networks Networks
	// Content reads the volumes of a Pod that hold files.
	Content func(pod types.UID) media.Content
	// Files looks at the files of the Pod that a process belongs to.
	Files func(*hypervisor.Process) Files
	// Sum reads a file of an image in a launcher Pod.
	Sum handover.SumFile
	// ExclusiveCPUs are those that the kubelet has given to a container of a Pod for itself.
	ExclusiveCPUs func(ctx context.Context, pod types.NamespacedName, container string) ([]uint, error)
	// Config is the cluster's configuration.
	Config func() clusterconfig.Config
	// Recorder sends events.
	Recorder events.EventRecorder
	// Clock gives the time.
	Clock clock.PassiveClock
}

// Reconciler brings the VMIs of one node to life.
type Reconciler struct {
	Options

	// copies are the guests that leave.
	copies *handover.Copies
	// api is the reconciles' access to the API server. What a migration or a stop needs at once does without.
	api *turns.Turns

	mu     sync.Mutex
	memory map[types.UID]*podMemory
}

// New makes a Reconciler.
func New(o Options) *Reconciler {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &Reconciler{Options: o, memory: map[types.UID]*podMemory{}, api: turns.New(apiTurns)}
	r.copies = handover.NewCopies(handover.CopiesOptions{
		Peers: o.Peers, Notify: o.Notify, Declare: r.declareMode, Left: r.giveAway, Sum: o.Sum, Tell: r.tell,
		DetectStalls: func() bool { return o.Config().IsEnabled(clusterconfig.GateStallDetection) },
	})
	return r
}

// Metrics are those of the guests that leave the node.
func (r *Reconciler) Metrics() prometheus.Collector { return r.copies.Metrics(r.Node) }

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, notices *Notices) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, PodIndex, IndexPod); err != nil {
		return fmt.Errorf("index Pods by their VMI: %w", err)
	}
	if err := mgr.Add(r.copies); err != nil {
		return err
	}
	incoming := source.Kind(r.Incoming, &v1.VirtualMachineInstance{}, &handler.TypedEnqueueRequestForObject[*v1.VirtualMachineInstance]{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineinstance").
		For(&v1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(requestOfPod)).
		WatchesRawSource(incoming).
		WatchesRawSource(notices).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: MaxVMIs,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, maxRetry),
		}).
		Complete(r)
}

// Reconcile brings one VMI a step further and reports how it is.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// Descriptions of the domain are kept until the end.
	ctx, end := r.Answers.Begin(ctx, req.Namespace)
	defer end()
	s, err := r.read(ctx, req.NamespacedName)
	if err != nil || s == nil {
		return result(ctx, err)
	}
	outcome := r.run(ctx, s)
	wait, err := r.report(ctx, s, outcome)
	if err != nil {
		// What could not be told is tried again at once, even when the outcome alone would wait.
		outcome = err
	}
	again, err := result(ctx, outcome)
	if err == nil && wait > 0 && (again.RequeueAfter == 0 || wait < again.RequeueAfter) {
		again.RequeueAfter = wait
	}
	return again, err
}

// run goes through the steps until one of them ends the reconcile.
func (r *Reconciler) run(ctx context.Context, s *scope) error {
	if r.left(s) {
		s.handedOver = false
		return &Wait{Reason: "the guest's new owner"}
	}
	for _, step := range []struct {
		name string
		do   func(context.Context, *scope) error
	}{
		// 1. Nothing is known without the hypervisor. Being out of reach ends the reconcile and changes nothing.
		{"connect", r.connect},
		// 2. The domain that is there decides about all that follows: the guest may have been started by an earlier
		// agent.
		{"look", r.look},
		// 3. Whose guest it is decides about all that follows, too. A guest that moves is neither started nor stopped here.
		{"migrate", r.migrate},
		// 4. A guest that an earlier agent started keeps its gateway, also while it shuts down.
		{"advertise", r.advertise},
		// 5. Before everything that leads to a start: what is to be stopped must not be started.
		{"shutdown", r.shutdown},
		// 6. and 7. may come before the hand-over. Network first: DHCP must answer before the guest asks.
		{"network", r.network},
		{"media", r.media},
		// 8. As soon as there is a network: the guest asks when it boots.
		{"advertise", r.advertise},
		// 9. One that comes from another node is not started.
		{"receive", r.receive},
		// 10. Only after the hand-over, and once in the life of a Pod.
		{"domain", r.domain},
		// Before anything looks at whether the guest runs.
		{"resume", r.resume},
		// 11. What a running guest tells. It never fails.
		{"sync", r.sync},
		// 12. After the disks were measured. It never fails either.
		{"grow", r.grow},
		// 13. A guest that came from another node gets the ports by which it came.
		{"forward", r.forward},
		// Whatever the guest does, it must not be ended for it during maintenance.
		{"probes", r.probes},
		// 14. Also for a guest that an earlier agent started, and may have left without. Last: a priority that cannot be
		// given keeps nothing else from being told.
		{"realtime", r.realtime},
	} {
		if err := step.do(ctx, s); err != nil {
			log.FromContext(ctx).V(4).Info("Step ends the reconcile", "step", step.name, "outcome", err.Error())
			return r.decline(ctx, s, err)
		}
	}
	if s.again > 0 {
		return &Requeue{After: s.again}
	}
	return nil
}

// tell sends an event about a guest that is copied.
func (r *Reconciler) tell(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, action, message string) {
	r.Recorder.Eventf(vmi, nil, corev1.EventTypeNormal, string(reason), action, "%s", message)
}

// stamp is the time of a write.
func (r *Reconciler) stamp() metav1.Time { return metav1.NewTime(r.Clock.Now().Truncate(time.Second)) }

// report writes the status and sends the events: those of actions in any case, because an action is not repeated when the
// write is, and those that follow from the status only once it is written, because the next reconcile derives them again. What a
// guest or a launcher changes too often has to wait: then it says how long.
func (r *Reconciler) report(ctx context.Context, s *scope, outcome error) (wait time.Duration, err error) {
	if s.handedOver {
		wait, err = r.writeStatus(ctx, s, outcome)
	}
	if s.spec() != nil {
		for _, e := range s.events {
			r.Recorder.Eventf(s.spec(), nil, e.kind, e.reason, e.reason, "%s", e.message)
		}
	}
	return wait, client.IgnoreNotFound(err)
}

// writeStatus writes the status and adds the events that follow from the change.
func (r *Reconciler) writeStatus(ctx context.Context, s *scope, outcome error) (wait time.Duration, err error) {
	share := &s.memory.guest
	if s.domain.Active() {
		wait, s.held = share.hold(s.report(), s.now)
	}
	computeStatus(s, outcome)
	changed := !equality.Semantic.DeepEqual(&s.before.Status, &s.vmi.Status)
	if changed {
		if postponed := s.memory.writes.Wait(s.now); postponed > 0 {
			return postponed, nil
		}
		if changed, err = r.write(ctx, s); err != nil {
			return 0, err
		}
	}
	if changed {
		s.memory.writes.Take(s.now)
	}
	if s.domain.Active() {
		share.wrote(s.report(), changed, s.now)
	}
	s.events = append(s.events, transitions(&s.before.Status, &s.vmi.Status)...)
	s.noteStuck()
	s.noteIOErrors()
	s.noteOmitted()
	return wait, nil
}

// write patches the status when it is the namespace's turn.
func (r *Reconciler) write(ctx context.Context, s *scope) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err = r.api.Do(ctx, s.key.Namespace, func() error {
		changed, err = vmistatus.Patch(ctx, r.Client, vmistatus.Handler, s.before, s.vmi)
		return err
	})
	return changed, err
}

func (r *Reconciler) memoryOf(pod *corev1.Pod) *podMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.memory[pod.UID]
	if !ok {
		m = newPodMemory(types.NamespacedName{Namespace: pod.Namespace, Name: ownerVMI(pod).Name}, pod.Name)
		r.memory[pod.UID] = m
	}
	return m
}

func domainName(key types.NamespacedName) string {
	return launcherpod.DomainName(key.Namespace, key.Name)
}
