// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// look is how often a Source compares its certificate with what is trusted.
const look = time.Minute

// Source has the certificate of a process in a role: it asks for one, keeps it and its key in memory, and asks for the next
// before it ends. It is a Runnable of a manager.
type Source struct {
	role    Role
	subject Subject
	trust   Trust
	connect func() (kubernetes.Interface, error)
	look    time.Duration

	mu        sync.RWMutex
	pair      *tls.Certificate
	crt, key  []byte
	listeners []func()
}

// NewSource makes a Source. Until it has run for a while, there is no certificate.
func NewSource(config *rest.Config, role Role, subject Subject, trust Trust) *Source {
	return &Source{
		role: role, subject: subject, trust: trust, look: look,
		connect: func() (kubernetes.Interface, error) { return kubernetes.NewForConfig(config) },
	}
}

// Start asks for certificates until the context ends. That nobody signs is no reason to fail: it goes on asking.
func (s *Source) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx))
	client, err := s.connect()
	if err != nil {
		return fmt.Errorf("cannot ask for certificates: %w", err)
	}
	for ctx.Err() == nil {
		if err := s.hold(ctx, client); err != nil {
			return fmt.Errorf("cannot ask for certificates: %w", err)
		}
	}
	return nil
}

// hold asks for a certificate and for its successors, until the context ends or nobody trusts the certificate any more: then
// its authority was lost, and waiting for its last days is no use.
func (s *Source) hold(ctx context.Context, client kubernetes.Interface) error {
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx:         &ctx,
		Name:        "certificate." + s.role.Name,
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		SignerName:  s.role.Signer(),
		Usages:      s.role.usages(),
		Template: &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: s.subject.CommonName}, DNSNames: s.subject.DNSNames,
		},
		CertificateStore: &store{source: s},
	})
	if err != nil {
		return err
	}
	// While somebody has still to sign, to ask once more is no use.
	replaced := s.Current()
	manager.Start()
	defer manager.Stop()
	tick := time.NewTicker(s.look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if pair := s.Current(); pair != replaced && s.isOrphaned(pair, time.Now()) {
			log.FromContext(ctx).Info("The authority of the certificate is not trusted any more, asking for another certificate", "signer", s.role.Signer())
			return nil
		}
	}
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

// store keeps what a manager got in the Source. It begins without anything, so that the manager asks at once; the Source keeps
// what it had until the answer is there.
type store struct {
	source *Source
	pair   *tls.Certificate
}

// Current implements certificate.Store.
func (s *store) Current() (*tls.Certificate, error) {
	if s.pair != nil {
		return s.pair, nil
	}
	none := certificate.NoCertKeyError("there is no certificate yet")
	return nil, &none
}

// Update implements certificate.Store.
func (s *store) Update(crt, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate that was signed cannot be used: %w", err)
	}
	s.pair = &pair
	s.source.set(&pair, crt, key)
	return &pair, nil
}

func (s *Source) set(pair *tls.Certificate, crt, key []byte) {
	s.mu.Lock()
	s.pair, s.crt, s.key = pair, crt, key
	listeners := s.listeners
	s.mu.Unlock()
	for _, f := range listeners {
		f()
	}
}
