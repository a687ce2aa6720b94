// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// ReasonNodeUnresponsive is the reason of the event on a Node whose agent no longer renews its Lease, and of the events
// on its VMIs.
const ReasonNodeUnresponsive = "NodeUnresponsive"

// Reconciler derives labels and the heartbeat annotation of Nodes from the Leases and reports of their agents, which
// may not write Nodes themselves.
type Reconciler struct {
	client.Client
	// Recorder records events on Nodes.
	Recorder events.EventRecorder
	// Namespace is the install namespace, in which agents keep their Lease and their report.
	Namespace string
	// Config contains the list of obsolete CPU models.
	Config kit.ConfigSource
	// Clock defaults to the system's.
	Clock clock.PassiveClock

	heartbeats Heartbeats
}

// +kubebuilder:rbac:groups=core,resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=kubevirt,resources=leases,verbs=list;watch;delete
// +kubebuilder:rbac:groups=core,namespace=kubevirt,resources=configmaps,verbs=list;watch;delete
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	ofAgent := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == r.Namespace && o.GetLabels()[v1.AppLabel] == agentapi.LabelValue
	}))
	// Kubelets write a Node's status often. Only metadata matters here.
	metadata := builder.WithPredicates(
		predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("node").
		WatchesMetadata(&corev1.Node{}, &handler.EnqueueRequestForObject{}, metadata).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(OfAgent), ofAgent).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(OfAgent), ofAgent), r)
}

// OfAgent maps an agent's Lease or report to its Node.
func OfAgent(_ context.Context, o client.Object) []reconcile.Request {
	name, ok := strings.CutPrefix(o.GetName(), agentapi.ObjectName(""))
	if !ok || name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
}

// Reconcile updates the labels and annotations of one Node, or deletes the Lease and the report of a Node that no
// longer exists.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	name, now := request.Name, kit.Now(r.Clock)
	lease, report, err := r.agent(ctx, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	if err := r.Get(ctx, request.NamespacedName, object); err != nil {
		if !apierrors.IsNotFound(err) {
			return ctrl.Result{}, fmt.Errorf("cannot read Node %q: %w", name, err)
		}
		r.heartbeats.Observe(name, nil, nil, now)
		return ctrl.Result{}, r.forget(ctx, lease, report)
	}

	state := r.state(ctx, object, lease, report, now)
	before := object.DeepCopy()
	if err := write(ctx, r.Client, object, state); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.recordUnresponsive(before, object, state)
	if !state.Pulse.Alive {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: max(state.Pulse.Expires.Sub(now), time.Second)}, nil
}

// agent reads an agent's Lease and its report. Either may be nil.
func (r *Reconciler) agent(ctx context.Context, name string) (*coordinationv1.Lease, *corev1.ConfigMap, error) {
	key := client.ObjectKey{Namespace: r.Namespace, Name: agentapi.ObjectName(name)}
	lease, err := r.read(ctx, key, &coordinationv1.Lease{})
	if err != nil {
		return nil, nil, err
	}
	report, err := r.read(ctx, key, &corev1.ConfigMap{})
	if err != nil {
		return nil, nil, err
	}
	l, _ := lease.(*coordinationv1.Lease)
	c, _ := report.(*corev1.ConfigMap)
	return l, c, nil
}

// read returns nil for an object that does not exist or is not an agent's.
func (r *Reconciler) read(ctx context.Context, key client.ObjectKey, o client.Object) (client.Object, error) {
	if err := r.Get(ctx, key, o); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot read what the agent published as %s: %w", key, err)
	}
	if o.GetLabels()[v1.AppLabel] != agentapi.LabelValue {
		return nil, nil
	}
	return o, nil
}

// state returns the state of a Node's agent. cm may be nil.
func (r *Reconciler) state(
	ctx context.Context, node *metav1.PartialObjectMetadata, lease *coordinationv1.Lease, cm *corev1.ConfigMap,
	now time.Time,
) State {
	s := State{Known: lease != nil, Pulse: r.heartbeats.Observe(node.Name, lease, node.Annotations, now)}
	if cm == nil {
		return s
	}
	log := ctrl.LoggerFrom(ctx)
	report, err := Report(cm)
	if err != nil {
		log.Error(err, "Cannot use the agent's report, the Node keeps its labels")
		return s
	}
	s.Ready = report.Devices
	if s.Labels, err = Labels(report, r.Config.Current().ObsoleteCPUModels); err != nil {
		log.Info("Left out entries of the agent's report", "problems", err.Error())
	}
	return s
}

// recordUnresponsive records an event if the agent's Lease has just expired. The VMI controller watches Nodes itself.
func (r *Reconciler) recordUnresponsive(before, after *metav1.PartialObjectMetadata, s State) {
	if Unresponsive(&before.ObjectMeta, s) {
		r.Recorder.Eventf(after, nil, corev1.EventTypeWarning, ReasonNodeUnresponsive, "Heartbeat",
			"virt-handler on node %s stopped renewing its lease: no VM is started there until it does", after.Name)
	}
}

// forget deletes the Lease and the report of an agent whose Node no longer exists.
func (r *Reconciler) forget(ctx context.Context, lease *coordinationv1.Lease, report *corev1.ConfigMap) error {
	var errs []error
	if lease != nil {
		errs = append(errs, client.IgnoreNotFound(r.Delete(ctx, lease)))
	}
	if report != nil {
		errs = append(errs, client.IgnoreNotFound(r.Delete(ctx, report)))
	}
	return errors.Join(errs...)
}
