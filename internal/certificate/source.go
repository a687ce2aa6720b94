// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

const (
	// checkInterval is how often a Source checks the age of its certificate and whether its CA is still trusted.
	checkInterval = time.Minute
	// signingTimeout is how long a Source waits for a request to be signed before it creates another.
	// kube-controller-manager deletes pending requests after a day.
	signingTimeout = 15 * time.Minute

	// renewalSpread is the percentage of the time until a certificate must be renewed over which renewals are spread.
	renewalSpread = 15
	// checksPerLifetime is the minimum number of checks of a certificate during its lifetime, which may be short.
	checksPerLifetime = 10
)

// retries is the backoff after failed requests.
var retries = wait.Backoff{Duration: 2 * time.Second, Factor: 2, Jitter: 0.1, Steps: 10, Cap: time.Minute}

// Source provides the certificate of a process in a role. It requests one, keeps it and its key in memory, and renews
// it before it expires. It is a Runnable of a manager.
type Source struct {
	// Clock can be replaced in tests, before Start.
	Clock clock.WithTicker
	// Lifetimes returns the configured lifetimes. It can be replaced before Start. Default: KubeVirt's lifetimes.
	Lifetimes func() clusterconfig.Certificates

	role    Role
	subject Subject
	trust   Trust
	connect func() (kubernetes.Interface, error)

	// issued is closed when there is a certificate.
	issued chan struct{}

	mu        sync.RWMutex
	pair      *tls.Certificate
	crt, key  []byte
	listeners []func()
	failure   error // of the last request, nil after a successful one
}

// NewSource returns a Source. It has no certificate until it runs and its first request has been signed.
func NewSource(config *rest.Config, role Role, subject Subject, trust Trust) *Source {
	return &Source{
		Clock:     clock.RealClock{},
		Lifetimes: func() clusterconfig.Certificates { return clusterconfig.Default().Certificates },
		role:      role, subject: subject, trust: trust, issued: make(chan struct{}),
		connect: func() (kubernetes.Interface, error) { return kubernetes.NewForConfig(config) },
	}
}

// Start requests certificates until the context ends. It retries failed requests and returns no error for them.
func (s *Source) Start(ctx context.Context) error {
	client, err := s.connect()
	if err != nil {
		return fmt.Errorf("cannot request certificates: %w", err)
	}
	var last time.Time
	for ctx.Err() == nil {
		// If a clock is wrong, certificates may be expired when they are issued. Limit the rate of requests.
		if early := checkEvery(s.Current()) - s.Clock.Since(last); early > 0 {
			select {
			case <-ctx.Done():
				continue
			case <-s.Clock.After(early):
			}
		}
		last = s.Clock.Now()
		s.obtain(ctx, client)
		s.awaitRenewal(ctx)
	}
	return nil
}

// obtain retries requests until there is a new certificate or the context ends. The previous certificate stays in use
// meanwhile.
func (s *Source) obtain(ctx context.Context, client kubernetes.Interface) {
	pause := retries
	for ctx.Err() == nil {
		err := s.request(ctx, client)
		if err == nil || ctx.Err() != nil {
			return
		}
		log.FromContext(ctx).Error(err, "Cannot get a certificate, trying again", "signer", s.role.Signer())
		s.fail(err)
		select {
		case <-ctx.Done():
		case <-s.Clock.After(pause.Step()):
		}
	}
}

// request requests one certificate, with a new key, and waits for it.
func (s *Source) request(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, signingTimeout)
	defer cancel()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("cannot make a key: %w", err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(private)
	if err != nil {
		return fmt.Errorf("cannot write a key: %w", err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: s.subject.CommonName},
		DNSNames: s.subject.DNSNames}
	request, err := certutil.MakeCSRFromTemplate(private, template)
	if err != nil {
		return fmt.Errorf("cannot make a request: %w", err)
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", s.role.Signer(), nil, s.role.usages(),
		private)
	if err != nil {
		return err
	}
	crt, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return fmt.Errorf("CertificateSigningRequest %s: %w", name, err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return fmt.Errorf("the certificate that was signed cannot be used: %w", err)
	}
	s.set(&pair, crt, key)
	return nil
}

// awaitRenewal returns when the certificate has to be renewed: because of its age, because another lifetime was
// configured, or because its CA is no longer trusted, which happens if the CA's Secret was lost.
func (s *Source) awaitRenewal(ctx context.Context) {
	duration, every := s.Lifetimes().ServerDuration, checkEvery(s.Current())
	tick := s.Clock.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		pair, now, lifetimes := s.Current(), s.Clock.Now(), s.Lifetimes()
		// Renew now if the next check would be too late.
		if pair == nil || !now.Before(RenewAt(pair.Leaf, lifetimes).Add(-every)) {
			return
		}
		// A certificate with a longer lifetime was signed before virt-controller had the current configuration.
		if lifetimes.ServerDuration != duration || lifetime(pair.Leaf)-lifetimes.ServerDuration >= time.Second {
			return
		}
		if s.isOrphaned(pair, now) {
			log.FromContext(ctx).Info("The authority of the certificate is not trusted any more, requesting another certificate",
				"signer", s.role.Signer())
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C():
		}
	}
}

// checkEvery returns the time between two checks of a certificate, and the minimum time between two requests.
func checkEvery(pair *tls.Certificate) time.Duration {
	if pair == nil {
		return checkInterval
	}
	return max(min(checkInterval, lifetime(pair.Leaf)/checksPerLifetime), time.Second)
}

// created returns when a certificate was issued, and lifetime how long it is valid after that.
func created(leaf *x509.Certificate) time.Time      { return leaf.NotBefore.Add(skew) }
func lifetime(leaf *x509.Certificate) time.Duration { return leaf.NotAfter.Sub(created(leaf)) }

// PendingLimit returns how long a request may stay pending before that has to be reported: half of the time that the
// previous certificate is still valid, at least, when the next one is requested.
func PendingLimit(lifetimes clusterconfig.Certificates) time.Duration {
	return lifetimes.ServerRenewBefore / 2
}

// RenewAt returns when a certificate is renewed: at the configured time before it expires, or up to 15 % of its age
// earlier. The serial number determines how much earlier, so that agents of many nodes that were started together do
// not renew their certificates together. If a certificate is valid for a shorter time, because its CA expires, all of
// this is proportionally shorter.
func RenewAt(leaf *x509.Certificate, lifetimes clusterconfig.Certificates) time.Time {
	before := lifetimes.ServerRenewBefore
	if valid := lifetime(leaf); valid < lifetimes.ServerDuration {
		before = time.Duration(float64(before) * float64(valid) / float64(lifetimes.ServerDuration))
	}
	age := lifetime(leaf) - before
	spread := new(big.Int).Mod(leaf.SerialNumber, big.NewInt(renewalSpread+1)).Int64()
	return created(leaf).Add(age - age/100*time.Duration(spread))
}

// isOrphaned reports whether the certificate's CA is not trusted. A new certificate is never orphaned, because the
// kubelet may not have updated the mounted CA certificates yet.
func (s *Source) isOrphaned(pair *tls.Certificate, now time.Time) bool {
	if pair == nil || now.Before(created(pair.Leaf).Add(settling)) {
		return false
	}
	pool, err := s.trust.pool(s.role)
	if err != nil {
		return false
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: s.role.purposes})
	var unknown x509.UnknownAuthorityError
	return errors.As(err, &unknown)
}

// NeedLeaderElection reports that every process needs a certificate of its own, leader or not.
func (s *Source) NeedLeaderElection() bool { return false }

// Ready is a readiness check. It returns an error if there is no valid certificate, with the failure of the last
// request.
func (s *Source) Ready(*http.Request) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.pair != nil && s.Clock.Now().Before(s.pair.Leaf.NotAfter):
		return nil
	case s.failure != nil:
		return fmt.Errorf("no certificate from signer %s: %w", s.role.Signer(), s.failure)
	}
	return fmt.Errorf("no certificate from signer %s yet: the CertificateSigningRequest is pending", s.role.Signer())
}

func (s *Source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// Current returns the certificate, or nil if there is none yet.
func (s *Source) Current() *tls.Certificate {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pair
}

// Issued returns a channel that is closed when there is a certificate.
func (s *Source) Issued() <-chan struct{} { return s.issued }

// PEM returns the certificate and its key, or nil if there is none yet.
func (s *Source) PEM() (crt, key []byte) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.crt, s.key
}

// OnChange calls f after each change of the certificate.
func (s *Source) OnChange(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, f)
}

func (s *Source) set(pair *tls.Certificate, crt, key []byte) {
	s.mu.Lock()
	if s.pair == nil {
		close(s.issued)
	}
	s.pair, s.crt, s.key, s.failure = pair, crt, key, nil
	listeners := s.listeners
	s.mu.Unlock()
	for _, f := range listeners {
		f()
	}
}
