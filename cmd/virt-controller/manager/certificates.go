// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// CertificateSecret is the name of the Secret with the CA and the serving certificate of the webhooks and the metrics.
// KubeVirt's.
const CertificateSecret = "kubevirt-controller-certs"

// metricsService is the Service under which the metrics are scraped.
const metricsService = "kubevirt-prometheus-metrics"

// Certificates provides the serving certificate from a Secret. It watches the Secret instead of mounting it, because the kubelet
// updates mounts once a minute, and the first certificate should be used at once.
type Certificates struct {
	key       types.NamespacedName
	directory string
	current   atomic.Pointer[tls.Certificate]
	mu        sync.Mutex // serializes load
	injected  chan struct{}
}

// errNoCertificate is the error of handshakes and of /readyz before the first certificate.
var errNoCertificate = errors.New("the serving certificate is not there yet")

// serve makes a server use the certificate.
func (c *Certificates) serve(config *tls.Config) {
	config.MinVersion = tls.VersionTLS12
	config.GetCertificate = c.Get
}

// Get implements tls.Config.GetCertificate.
func (c *Certificates) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if certificate := c.current.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errNoCertificate
}

// Ready is a readiness check. It returns an error until there is a certificate and its CA is in the webhook configurations.
func (c *Certificates) Ready(*http.Request) error {
	if c.current.Load() == nil {
		return errNoCertificate
	}
	select {
	case <-c.injected:
		return nil
	default:
		return errors.New("the CA bundle is not in the webhook configurations yet")
	}
}

// NeedLeaderElection reports that every replica serves webhooks, leader or not.
func (c *Certificates) NeedLeaderElection() bool { return false }

// load makes the certificate in the Secret current. It also writes the file by which the rotator sees that the certificate is in
// use.
func (c *Certificates) load(secret *corev1.Secret) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	crt, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(crt) == 0 || len(key) == 0 {
		return nil
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return fmt.Errorf("secret %s has no usable certificate, delete it to have a new one made: %w", c.key, err)
	}
	if err := os.MkdirAll(c.directory, 0o700); err != nil {
		return fmt.Errorf("cannot make the certificate directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.directory, corev1.TLSCertKey), crt, 0o600); err != nil {
		return fmt.Errorf("cannot write the certificate: %w", err)
	}
	c.current.Store(&pair)
	return nil
}

// follower loads the Secret when it changes.
type follower struct {
	*Certificates
	cache cache.Cache
}

// Start watches the Secret until the context ends.
func (f *follower) Start(ctx context.Context) error {
	informer, err := f.cache.GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return fmt.Errorf("cannot watch Secret %s: %w", f.key, err)
	}
	load := func(o any) {
		secret, ok := o.(*corev1.Secret)
		if !ok || client.ObjectKeyFromObject(secret) != f.key {
			return
		}
		if err := f.load(secret); err != nil {
			log.FromContext(ctx).Error(err, "Cannot use the serving certificate, the last one stays")
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    load,
		UpdateFunc: func(_, current any) { load(current) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch Secret %s: %w", f.key, err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}

// NewCertificates returns Certificates without a certificate. Configure the servers with Get, then call Setup with the manager.
func NewCertificates(o *Options) *Certificates {
	return &Certificates{
		key:       types.NamespacedName{Namespace: o.Namespace, Name: CertificateSecret},
		directory: o.CertificateDirectory,
		injected:  make(chan struct{}),
	}
}

// Setup makes the manager create and renew the certificate and write its CA to the webhook configurations. Later changes of the
// configured lifetimes take effect when virt-controller is restarted.
func (c *Certificates) Setup(ctx context.Context, mgr ctrl.Manager, o *Options, lifetimes clusterconfig.Certificates) error {
	if err := c.ensureSecret(ctx, mgr.GetClient()); err != nil {
		return err
	}
	if err := mgr.Add(&follower{Certificates: c, cache: mgr.GetCache()}); err != nil {
		return err
	}
	return rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:      c.key,
		CertDir:        c.directory,
		CAName:         "kubevirt.io",
		CAOrganization: "kubevirt.io",
		DNSName:        fmt.Sprintf("%s.%s.svc", o.WebhookService, o.Namespace),
		ExtraDNSNames: []string{
			fmt.Sprintf("%s.%s.svc", metricsService, o.Namespace),
			fmt.Sprintf("%s.%s.svc.cluster.local", metricsService, o.Namespace),
		},
		IsReady: c.injected,
		Webhooks: []rotator.WebhookInfo{
			{Name: o.MutatingWebhooks, Type: rotator.Mutating},
			{Name: o.ValidatingWebhooks, Type: rotator.Validating},
		},
		FieldOwner:         componentName,
		CaCertDuration:     lifetimes.CADuration,
		ServerCertDuration: lifetimes.ServerDuration,
		// The interval is for the CA and the certificates alike. It is the shorter one, that of certificates.
		LookaheadInterval:      lifetimes.ServerRenewBefore,
		RotationCheckFrequency: max(lifetimes.ServerRenewBefore/4, time.Minute),
	})
}

// ensureSecret creates the Secret. The rotator only updates it.
func (c *Certificates) ensureSecret(ctx context.Context, writer client.Writer) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.key.Namespace, Name: c.key.Name, Labels: map[string]string{v1.AppLabel: componentName},
	}}
	if err := writer.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot create Secret %s for the certificates: %w", c.key, err)
	}
	return nil
}
