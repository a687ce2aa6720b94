// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package webhookcertificate renews the certificate of virt-controller's webhooks and metrics, and the secret paths of
// the webhooks. It keeps the CA and the paths in the webhook configurations. It works without a KubeVirt object,
// because a webhook validates that object.
package webhookcertificate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/webhook/server"
)

// Reconciler renews the certificate in a Secret. Only the leader runs it; the servers of every replica use the Secret.
type Reconciler struct {
	client.Client
	// Secret is the Secret, and Component the value of its label.
	Secret    client.ObjectKey
	Component string
	// Names are the DNS names of the servers.
	Names []string
	// Hooks reads and changes the webhook configurations.
	Hooks Hooks
	// Config contains the lifetimes of certificates.
	Config kit.ConfigFeed
	// Clock replaces the system's clock in tests.
	Clock clock.PassiveClock

	// leading is the time of the first reconciliation.
	leading time.Time
}

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	only := func(name string) builder.Predicates {
		return builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == name }))
	}
	enqueue := handler.EnqueueRequestsFromMapFunc(r.secret)
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("webhookcertificate").
		Watches(&corev1.Secret{}, enqueue, only(r.Secret.Name)).
		Watches(&admissionv1.MutatingWebhookConfiguration{}, enqueue, only(r.Hooks.Mutating)).
		Watches(&admissionv1.ValidatingWebhookConfiguration{}, enqueue, only(r.Hooks.Validating)).
		// This also triggers the first reconciliation, when there may be no Secret.
		WatchesRawSource(kit.OnConfig(r.Config, 0, r.secret)), r)
}

func (r *Reconciler) secret(context.Context, client.Object) []ctrl.Request {
	return []ctrl.Request{{NamespacedName: r.Secret}}
}

// Reconcile renews the certificate, its CA and the paths if that is due, and writes the CA and the paths to the webhook
// configurations.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	now := kit.Now(r.Clock)
	if r.leading.IsZero() {
		r.leading = now
	}
	configurations, err := r.Hooks.read(ctx, r.Client)
	if err != nil {
		return outcome.Result(ctx, err)
	}
	renewed, again, err := r.renew(ctx, now, bundles(configurations))
	if err != nil {
		return outcome.Result(ctx, err)
	}
	// A CA signs once the configurations trust it. Their update triggers the next reconciliation.
	return outcome.Result(ctx, inject(ctx, r.Client, configurations, renewed), again.Sub(now))
}

// settings are what the API server needs to call the webhooks: the CA certificates to trust, and the paths.
type settings struct {
	bundle []byte
	paths  server.Paths
}

// renew writes the Secret if something in it has to be renewed. It returns what the webhook configurations need, and
// when to call it again.
func (r *Reconciler) renew(ctx context.Context, now time.Time, trusted [][]byte) (settings, time.Time, error) {
	secret := &corev1.Secret{}
	err := r.Get(ctx, r.Secret, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return settings{}, time.Time{}, fmt.Errorf("cannot read Secret %s: %w", r.Secret, err)
	}
	found, err := certificate.WebhooksFrom(secret.Data)
	if err != nil {
		log.FromContext(ctx).Error(err, "The certificate of the webhooks cannot be used, making another", "secret", r.Secret)
	}
	lifetimes := r.Config.Current().Certificates
	configured, duration := lifetimes.ServerDuration.String(), secret.Annotations[certificate.DurationAnnotation]
	renewed, again, err := found.Renew(certificate.Renewal{
		Now: now, Lifetimes: lifetimes, Names: r.Names, Trusted: trusted, Replace: duration != "" && duration != configured,
	})
	if err != nil {
		return settings{}, time.Time{}, err
	}
	data, err := renewed.Data()
	if err != nil {
		return settings{}, time.Time{}, err
	}
	paths, expiry := server.PathsFrom(secret.Data).Renew(now, r.leading)
	maps.Copy(data, paths.Data())
	if expiry.Before(again) {
		again = expiry
	}
	wanted := secret.DeepCopy()
	wanted.Namespace, wanted.Name, wanted.Data = r.Secret.Namespace, r.Secret.Name, data
	metav1.SetMetaDataLabel(&wanted.ObjectMeta, v1.AppLabel, r.Component)
	if duration == "" || string(data[corev1.TLSCertKey]) != string(secret.Data[corev1.TLSCertKey]) {
		metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, certificate.DurationAnnotation, configured)
	}
	switch {
	case missing:
		err = r.Create(ctx, wanted)
	case !maps.EqualFunc(secret.Data, data, equalBytes) ||
		!equality.Semantic.DeepEqual(secret.ObjectMeta, wanted.ObjectMeta):
		// The update fails if the Secret has changed since it was read: a stale cache must not overwrite a CA that signs.
		err = r.Update(ctx, wanted)
	}
	if err != nil {
		return settings{}, time.Time{}, fmt.Errorf("cannot write Secret %s: %w", r.Secret, err)
	}
	return settings{bundle: renewed.Bundle(), paths: paths}, again, nil
}

func equalBytes(a, b []byte) bool { return string(a) == string(b) }

// Hooks are the names of the configurations of the webhooks.
type Hooks struct{ Mutating, Validating string }

// ErrUntrusted means that the API server does not trust the certificate yet.
var ErrUntrusted = errors.New("the CA bundle is not in the webhook configurations yet")

// Trusts returns an error if one of the webhooks does not trust a certificate according to verify, which gets the CA
// bundles.
func (h Hooks) Trusts(ctx context.Context, reader client.Reader, verify func(bundle []byte) error) error {
	configurations, err := h.read(ctx, reader)
	if err != nil {
		return err
	}
	for _, bundle := range bundles(configurations) {
		if err := verify(bundle); err != nil {
			return fmt.Errorf("%w: %w", ErrUntrusted, err)
		}
	}
	return nil
}

func (h Hooks) read(ctx context.Context, reader client.Reader) ([]client.Object, error) {
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	for name, object := range map[string]client.Object{h.Mutating: mutating, h.Validating: validating} {
		if err := reader.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
			return nil, fmt.Errorf("cannot read webhook configuration %q: %w", name, err)
		}
	}
	return []client.Object{mutating, validating}, nil
}

// hook is a webhook of a configuration: its name, and where the API server calls it.
type hook struct {
	name string
	*admissionv1.WebhookClientConfig
}

func hooksOf(configuration client.Object) []hook {
	var out []hook
	switch c := configuration.(type) {
	case *admissionv1.MutatingWebhookConfiguration:
		for i := range c.Webhooks {
			out = append(out, hook{c.Webhooks[i].Name, &c.Webhooks[i].ClientConfig})
		}
	case *admissionv1.ValidatingWebhookConfiguration:
		for i := range c.Webhooks {
			out = append(out, hook{c.Webhooks[i].Name, &c.Webhooks[i].ClientConfig})
		}
	}
	return out
}

func bundles(configurations []client.Object) [][]byte {
	var out [][]byte
	for _, configuration := range configurations {
		for _, h := range hooksOf(configuration) {
			out = append(out, h.CABundle)
		}
	}
	return out
}

// inject writes settings to the webhook configurations that have others.
func inject(ctx context.Context, writer client.Writer, configurations []client.Object, wanted settings) error {
	for _, configuration := range configurations {
		changed := false
		for _, h := range hooksOf(configuration) {
			if !equalBytes(h.CABundle, wanted.bundle) {
				h.CABundle, changed = wanted.bundle, true
			}
			if path := wanted.paths.Path(h.name); h.Service != nil && ptr.Deref(h.Service.Path, "") != path {
				h.Service.Path, changed = ptr.To(path), true
			}
		}
		if !changed {
			continue
		}
		if err := writer.Update(ctx, configuration); err != nil {
			return fmt.Errorf("cannot write the CA bundle and the paths to webhook configuration %q: %w",
				configuration.GetName(), err)
		}
	}
	return nil
}
