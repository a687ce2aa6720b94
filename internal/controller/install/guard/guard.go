// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package guard keeps virt-controller from doing anything on a cluster that KubeVirt manages: two installations that
// both reconcile the VMs of a cluster stop each other's guests.
package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
)

// Names of KubeVirt's operator and of its webhook, which exist as long as KubeVirt reconciles the cluster.
const (
	operator          = "virt-operator"
	operatorValidator = "virt-operator-validator"
)

// reportRetry is the time until a condition that could not be written is written again.
const reportRetry = 10 * time.Second

// ReasonInstalled is the reason of the condition v1.KubeVirtConditionWaiting.
const ReasonInstalled = "KubeVirtInstalled"

// ErrAppeared ends virt-controller when KubeVirt is installed beside it. The next process waits.
var ErrAppeared = errors.New("KubeVirt has been installed")

// Guard watches KubeVirt's operator.
type Guard struct {
	cache     cache.Cache
	namespace string
	// changed has room for one notice, so that none is lost and none waits.
	changed chan struct{}
}

// New returns a Guard for an install namespace. Start has to be called.
func New(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, namespace string) (*Guard, error) {
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector(metav1.ObjectNameField, name) }
	here := map[string]cache.Config{namespace: {FieldSelector: named(operator)}}
	watched := map[client.Object]cache.ByObject{
		&appsv1.Deployment{}:                          {Namespaces: here},
		&admissionv1.ValidatingWebhookConfiguration{}: {Field: named(operatorValidator)},
	}
	c, err := cache.New(config, cache.Options{Scheme: scheme, ByObject: watched})
	if err != nil {
		return nil, fmt.Errorf("cannot watch KubeVirt's operator: %w", err)
	}
	g := &Guard{cache: c, namespace: namespace, changed: make(chan struct{}, 1)}
	for object := range watched {
		informer, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("cannot watch KubeVirt's operator: %w", err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { g.notify() }, UpdateFunc: func(any, any) { g.notify() }, DeleteFunc: func(any) { g.notify() },
		}); err != nil {
			return nil, fmt.Errorf("cannot watch KubeVirt's operator: %w", err)
		}
	}
	return g, nil
}

func (g *Guard) notify() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Start watches until the context ends.
func (g *Guard) Start(ctx context.Context) error { return g.cache.Start(ctx) }

// Found returns what there is of KubeVirt's operator, or "". An operator without replicas reconciles nothing.
func (g *Guard) Found(ctx context.Context) (string, error) {
	if !g.cache.WaitForCacheSync(ctx) {
		return "", fmt.Errorf("cannot read KubeVirt's operator: %w", context.Cause(ctx))
	}
	deployment := &appsv1.Deployment{}
	err := g.cache.Get(ctx, client.ObjectKey{Namespace: g.namespace, Name: operator}, deployment)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get Deployment %s/%s: %w", g.namespace, operator, err)
	}
	if replicas := max(ptr.Deref(deployment.Spec.Replicas, 1), deployment.Status.Replicas); err == nil && replicas > 0 {
		return fmt.Sprintf("Deployment %s/%s has %d replicas", g.namespace, operator, replicas), nil
	}
	webhook := &admissionv1.ValidatingWebhookConfiguration{}
	err = g.cache.Get(ctx, client.ObjectKey{Name: operatorValidator}, webhook)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get ValidatingWebhookConfiguration %s: %w", operatorValidator, err)
	}
	if err == nil {
		return "there is a ValidatingWebhookConfiguration " + operatorValidator + ": if no virt-operator runs, delete it", nil
	}
	return "", nil
}

// Await returns when there is no operator of KubeVirt. Until then, it calls waits, and reports why nothing is done. The
// reconciler of KubeVirt objects removes that condition.
func (g *Guard) Await(ctx context.Context, c client.Client, waits func(found string)) error {
	for {
		found, err := g.Found(ctx)
		if err != nil {
			return err
		}
		if found == "" {
			return nil
		}
		waits(found)
		var again <-chan time.Time
		if err := report(ctx, c, g.namespace, found); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot report in the KubeVirt object that KubeVirt is installed")
			again = time.After(reportRetry)
		}
		select {
		case <-g.changed:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Watch returns ErrAppeared when KubeVirt's operator appears.
func (g *Guard) Watch(ctx context.Context) error {
	for {
		select {
		case <-g.changed:
		case <-ctx.Done():
			return nil
		}
		switch found, err := g.Found(ctx); {
		case err != nil:
			return err
		case found != "":
			return fmt.Errorf("%w: %s", ErrAppeared, found)
		}
	}
}

// Message says why nothing is done, and what to do.
func Message(found string) string {
	return "KubeVirt manages this cluster (" + found + "), and Vireo changes nothing meanwhile. Do not uninstall KubeVirt: that " +
		"deletes all VirtualMachines. Taking over a cluster with its guests running is not implemented yet; " +
		"virtctl adm takeover plan looks at it."
}

// report sets the condition of the KubeVirt objects of the install namespace.
func report(ctx context.Context, c client.Client, namespace, found string) error {
	list := &v1.KubeVirtList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list KubeVirt objects: %w", err)
	}
	now := metav1.Now()
	for i := range list.Items {
		kv := &list.Items[i]
		err := kit.WriteStatus(ctx, c, &kv, func(kv *v1.KubeVirt) {
			conditions.Set(&kv.Status.Conditions, v1.KubeVirtCondition{
				Type: v1.KubeVirtConditionWaiting, Status: corev1.ConditionTrue, Reason: ReasonInstalled, Message: Message(found),
				LastProbeTime: now, LastTransitionTime: now,
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
