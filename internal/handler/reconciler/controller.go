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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
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
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// workers is the number of VMIs that are worked on at a time: libvirt and the network are waited for, not the CPU.
const workers = 10

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
	// Networks connects guests.
	Networks Networks
	// Content reads the volumes of a Pod that hold files.
	Content func(pod types.UID) media.Content
	// Files looks at the files of the Pod that a process belongs to.
	Files func(*hypervisor.Process) Files
	// Config is the cluster's configuration.
	Config func() clusterconfig.Config
	// Recorder sends events.
	Recorder events.EventRecorder
	// Now is the clock.
	Now func() time.Time
}

// Reconciler brings the VMIs of one node to life.
type Reconciler struct {
	Options

	// copies are the guests that leave.
	copies *handover.Copies

	mu     sync.Mutex
	memory map[types.UID]*podMemory
}

// New makes a Reconciler.
func New(o Options) *Reconciler {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Reconciler{Options: o, memory: map[types.UID]*podMemory{}}
	r.copies = handover.NewCopies(handover.CopiesOptions{Peers: o.Peers, Notify: o.Notify, Declare: r.declareMode, Left: r.giveAway, Tell: r.tell})
	return r
}

// Metrics are those of the guests that leave the node.
func (r *Reconciler) Metrics() prometheus.Collector { return r.copies.Metrics(r.Node) }

// SetupWithManager registers the reconciler. What comes through notices is a VMI that the hypervisor has news of.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, notices <-chan event.TypedGenericEvent[types.NamespacedName]) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, PodIndex, IndexPod); err != nil {
		return fmt.Errorf("index Pods by their VMI: %w", err)
	}
	byKey := handler.TypedFuncs[types.NamespacedName, reconcile.Request]{
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[types.NamespacedName], q queue) {
			q.Add(reconcile.Request{NamespacedName: e.Object})
		},
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
		WatchesRawSource(source.TypedChannel[types.NamespacedName, reconcile.Request](notices, byKey)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

// Reconcile brings one VMI a step further and reports how it is.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, err := r.read(ctx, req.NamespacedName)
	if err != nil || s == nil {
		return result(ctx, err)
	}
	outcome := r.run(ctx, s)
	if err := r.report(ctx, s, outcome); err != nil {
		// What could not be told is tried again at once, even when the outcome alone would wait.
		outcome = err
	}
	return result(ctx, outcome)
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
		// 11. What a running guest tells. It never fails.
		{"sync", r.sync},
		// 12. Also for a guest that an earlier agent started, and may have left without. Last: a priority that cannot be
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
func (r *Reconciler) stamp() metav1.Time { return metav1.NewTime(r.Now().Truncate(time.Second)) }

// report writes the status and, when that has succeeded, sends the events.
func (r *Reconciler) report(ctx context.Context, s *scope, outcome error) error {
	if s.handedOver {
		computeStatus(s, outcome)
		if _, err := vmistatus.Patch(ctx, r.Client, vmistatus.Handler, s.before, s.vmi); err != nil {
			return client.IgnoreNotFound(err)
		}
		s.noteTransitions()
	}
	if s.spec() == nil {
		return nil
	}
	for _, e := range s.events {
		r.Recorder.Eventf(s.spec(), nil, e.kind, e.reason, e.reason, "%s", e.message)
	}
	return nil
}

func (r *Reconciler) memoryOf(pod *corev1.Pod) *podMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.memory[pod.UID]
	if !ok {
		m = &podMemory{key: types.NamespacedName{Namespace: pod.Namespace, Name: ownerVMI(pod).Name}, pod: pod.Name}
		r.memory[pod.UID] = m
	}
	return m
}

func domainName(key types.NamespacedName) string {
	return launcherpod.DomainName(key.Namespace, key.Name)
}
