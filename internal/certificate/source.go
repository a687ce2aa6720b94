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
	// checkInterval is how often a Source compares its certificate with the time and with what is trusted.
	checkInterval = time.Minute
	// signingLimit is how long a request is waited for before another one is made. kube-controller-manager deletes requests that
	// nobody answers after a day.
	signingLimit = 15 * time.Minute

	// firstRenewal and lastRenewal are the shares of a certificate's life, in percent, between which its holder asks for the next.
	firstRenewal, lastRenewal = 70, 85
)

// retries are the pauses after requests that failed.
var retries = wait.Backoff{Duration: 2 * time.Second, Factor: 2, Jitter: 0.1, Steps: 10, Cap: time.Minute}

// Source has the certificate of a process in a role: it asks for one, keeps it and its key in memory, and asks for the next
// before it ends. It is a Runnable of a manager.
type Source struct {
	// Clock replaces the time in tests. Set it before Start.
	Clock clock.WithTicker

	role    Role
	subject Subject
	trust   Trust
	connect func() (kubernetes.Interface, error)

	mu        sync.RWMutex
	pair      *tls.Certificate
	crt, key  []byte
	listeners []func()
	failure   error // of the last attempt to get one
}

// NewSource makes a Source. Until it has run for a while, there is no certificate.
func NewSource(config *rest.Config, role Role, subject Subject, trust Trust) *Source {
	return &Source{
		Clock: clock.RealClock{}, role: role, subject: subject, trust: trust,
		connect: func() (kubernetes.Interface, error) { return kubernetes.NewForConfig(config) },
	}
}

// Start asks for certificates until the context ends. That nobody signs is no reason to fail: it goes on asking.
func (s *Source) Start(ctx context.Context) error {
	client, err := s.connect()
	if err != nil {
		return fmt.Errorf("cannot ask for certificates: %w", err)
	}
	var last time.Time
	for ctx.Err() == nil {
		// A certificate whose time is over when it is issued, because a clock is wrong, must not make requests without end.
		if early := checkInterval - s.Clock.Since(last); early > 0 {
			select {
			case <-ctx.Done():
				continue
			case <-s.Clock.After(early):
			}
		}
		last = s.Clock.Now()
		s.obtain(ctx, client)
		s.keep(ctx)
	}
	return nil
}

// obtain asks until there is another certificate or the context ends. The last one is in use meanwhile.
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

// request asks for one certificate, with a new key, and waits for it.
func (s *Source) request(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, signingLimit)
	defer cancel()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("cannot make a key: %w", err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(private)
	if err != nil {
		return fmt.Errorf("cannot write a key: %w", err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: s.subject.CommonName}, DNSNames: s.subject.DNSNames}
	request, err := certutil.MakeCSRFromTemplate(private, template)
	if err != nil {
		return fmt.Errorf("cannot make a request: %w", err)
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", s.role.Signer(), nil, s.role.usages(), private)
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

// keep returns when it is time for another certificate: by its age, or because nobody trusts it any more. Then its authority was
// lost, and waiting for its last days is no use.
func (s *Source) keep(ctx context.Context) {
	tick := s.Clock.NewTicker(checkInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		pair, now := s.Current(), s.Clock.Now()
		if pair == nil || !now.Before(RenewAt(pair.Leaf)) {
			return
		}
		if s.isOrphaned(pair, now) {
			log.FromContext(ctx).Info("The authority of the certificate is not trusted any more, asking for another certificate", "signer", s.role.Signer())
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C():
		}
	}
}

// UnansweredLimit is how long a request for a certificate may stay unanswered until somebody should know: half of the time that is
// left of the certificate before it, at least, when its holder asks for the next one.
func UnansweredLimit(lifetimes clusterconfig.Certificates) time.Duration {
	return lifetimes.ServerDuration / 100 * (100 - lastRenewal) / 2
}

// RenewAt is when the holder of a certificate asks for the next one: when 70 to 85 % of its life are over, which differs from
// certificate to certificate, so that the agents of many nodes that began together do not ask together.
func RenewAt(leaf *x509.Certificate) time.Time {
	begin := leaf.NotBefore.Add(skew)
	spread := new(big.Int).Mod(leaf.SerialNumber, big.NewInt(lastRenewal-firstRenewal+1)).Int64()
	share := firstRenewal + spread
	return begin.Add(leaf.NotAfter.Sub(begin) / 100 * time.Duration(share))
}

// isOrphaned says that the certificate is not of an authority that is trusted. A new one may be of an authority that the
// kubelet has not brought here yet.
func (s *Source) isOrphaned(pair *tls.Certificate, now time.Time) bool {
	if pair == nil || now.Before(pair.Leaf.NotBefore.Add(skew+settling)) {
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

// NeedLeaderElection is false: each process has a certificate of its own.
func (s *Source) NeedLeaderElection() bool { return false }

// Ready is a check of readiness: there is a certificate, and it has not ended. What keeps the process from getting one is in the error.
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

// Current is the certificate, or nil as long as there is none.
func (s *Source) Current() *tls.Certificate {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pair
}

// PEM is the certificate and its key, or nothing as long as there is none.
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
	s.pair, s.crt, s.key, s.failure = pair, crt, key, nil
	listeners := s.listeners
	s.mu.Unlock()
	for _, f := range listeners {
		f()
	}
}
