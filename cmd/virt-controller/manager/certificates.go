// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/webhookcertificate"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/webhook/server"
)

// Certificates provides the serving certificate and the paths of the webhooks from a Secret. It watches the Secret
// instead of mounting it, because the kubelet updates mounts once a minute, and the first certificate should be used at
// once.
type Certificates struct {
	key     types.NamespacedName
	hooks   webhookcertificate.Hooks
	clock   clock.PassiveClock
	current atomic.Pointer[tls.Certificate]
	paths   atomic.Pointer[server.Paths]
	// cache contains the Secret and the webhook configurations. Setup sets it.
	cache cache.Cache
}

// errNoCertificate is the error of handshakes and of /readyz before the first certificate.
var errNoCertificate = errors.New("the serving certificate is not there yet")

// serve makes a server use the certificate.
func (c *Certificates) serve(config *tls.Config) { config.GetCertificate = c.Get }

// NewCertificates returns Certificates without a certificate. Configure the servers with Get, then call Setup with the
// manager.
func NewCertificates(o *Options) *Certificates {
	return &Certificates{
		key:   types.NamespacedName{Namespace: o.Namespace, Name: certificate.WebhooksSecret},
		hooks: webhookcertificate.Hooks{Mutating: o.MutatingWebhooks, Validating: o.ValidatingWebhooks},
		clock: o.Clock,
	}
}

// Setup makes the manager create and renew the certificate, on the leader, and follow it.
func (c *Certificates) Setup(mgr ctrl.Manager, o *Options, config *clusterconfig.Store) error {
	c.cache = mgr.GetCache()
	// The update of one configuration triggers a reconciliation before the cache has the update of the other one.
	ownWrites := optimistic.Client(mgr.GetClient(),
		&admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{})
	renewal := &webhookcertificate.Reconciler{
		Client: ownWrites, Secret: c.key, Component: componentName, Hooks: c.hooks, Config: config, Clock: o.Clock,
		Names: []string{
			fmt.Sprintf("%s.%s.svc", o.WebhookService, o.Namespace),
			fmt.Sprintf("%s.%s.svc", certificate.MetricsService, o.Namespace),
			fmt.Sprintf("%s.%s.svc.cluster.local", certificate.MetricsService, o.Namespace),
		},
	}
	if err := renewal.SetupWithManager(mgr); err != nil {
		return err
	}
	return mgr.Add(c)
}

// Get implements tls.Config.GetCertificate.
func (c *Certificates) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if certificate := c.current.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errNoCertificate
}

// Webhook returns the name of the webhook that a path leads to, or false for a path that API servers do not use.
func (c *Certificates) Webhook(path string) (name string, ok bool) {
	if paths := c.paths.Load(); paths != nil {
		return paths.Webhook(path)
	}
	return "", false
}

// Ready is a readiness check. It returns an error until there is a certificate that the API server trusts for every
// webhook.
func (c *Certificates) Ready(request *http.Request) error {
	certificate := c.current.Load()
	if certificate == nil {
		return errNoCertificate
	}
	return c.hooks.Trusts(request.Context(), c.cache, func(bundle []byte) error {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(bundle)
		_, err := certificate.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: kit.Now(c.clock)})
		return err
	})
}

// NeedLeaderElection reports that every replica serves webhooks, leader or not.
func (c *Certificates) NeedLeaderElection() bool { return false }

// load makes the certificate and the paths in the Secret current.
func (c *Certificates) load(secret *corev1.Secret) error {
	if paths := server.PathsFrom(secret.Data); paths.Exist() {
		c.paths.Store(&paths)
	}
	crt, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(crt) == 0 && len(key) == 0 {
		return nil // The leader makes another.
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return fmt.Errorf("secret %s has no usable certificate: %w", c.key, err)
	}
	c.current.Store(&pair)
	return nil
}

// Start follows the Secret until the context ends.
func (c *Certificates) Start(ctx context.Context) error {
	informer, err := c.cache.GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return fmt.Errorf("cannot watch Secret %s: %w", c.key, err)
	}
	load := func(o any) {
		secret, ok := o.(*corev1.Secret)
		if !ok || client.ObjectKeyFromObject(secret) != c.key {
			return
		}
		if err := c.load(secret); err != nil {
			log.FromContext(ctx).Error(err, "Cannot use the serving certificate, the last one stays")
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    load,
		UpdateFunc: func(_, current any) { load(current) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch Secret %s: %w", c.key, err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}
