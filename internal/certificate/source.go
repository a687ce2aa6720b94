// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Source has the certificate of a process in a role: it asks for one, keeps it and its key in memory, and asks for the next
// before it ends. It is a Runnable of a manager.
type Source struct {
	config  *rest.Config
	role    Role
	subject Subject

	mu        sync.RWMutex
	pair      *tls.Certificate
	crt, key  []byte
	listeners []func()
}

// NewSource makes a Source. Until it has run for a while, there is no certificate.
func NewSource(config *rest.Config, role Role, subject Subject) *Source {
	return &Source{config: config, role: role, subject: subject}
}

// Start asks for certificates until the context ends. That nobody signs is no reason to fail: it goes on asking.
func (s *Source) Start(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		return fmt.Errorf("cannot ask for certificates: %w", err)
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx))
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx:         &ctx,
		Name:        "certificate." + s.role.Name,
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		SignerName:  s.role.Signer(),
		Usages:      s.role.usages(),
		Template: &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: s.subject.CommonName}, DNSNames: s.subject.DNSNames,
		},
		CertificateStore: store{s},
	})
	if err != nil {
		return fmt.Errorf("cannot ask for certificates: %w", err)
	}
	manager.Start()
	<-ctx.Done()
	manager.Stop()
	return nil
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

// store keeps what the manager got in the Source.
type store struct{ *Source }

// Current implements certificate.Store.
func (s store) Current() (*tls.Certificate, error) {
	if pair := s.Source.Current(); pair != nil {
		return pair, nil
	}
	none := certificate.NoCertKeyError("there is no certificate yet")
	return nil, &none
}

// Update implements certificate.Store.
func (s store) Update(crt, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate that was signed cannot be used: %w", err)
	}
	s.mu.Lock()
	s.pair, s.crt, s.key = &pair, crt, key
	listeners := s.listeners
	s.mu.Unlock()
	for _, f := range listeners {
		f()
	}
	return &pair, nil
}
