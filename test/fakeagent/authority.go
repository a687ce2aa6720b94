// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fakeagent

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// Authority signs certificates of agents and of virt-api.
type Authority struct {
	ca   *x509.Certificate
	key  crypto.Signer
	pool *x509.CertPool
}

// NewAuthority makes an Authority.
func NewAuthority(t T) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("%v", err)
	}
	ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "agents"}, key)
	if err != nil {
		t.Fatalf("%v", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return &Authority{ca: ca, key: key, pool: pool}
}

// Client is the configuration of virt-api's connections to agents.
func (a *Authority) Client(t T) func(node string) (*tls.Config, error) {
	t.Helper()
	own := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: agentapi.ClientName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return func(node string) (*tls.Config, error) {
		return &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: a.pool, Certificates: []tls.Certificate{own}, ServerName: agentapi.ServerName(node),
		}, nil
	}
}

func (a *Authority) server(t T, name string) *tls.Config {
	t.Helper()
	own := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool, Certificates: []tls.Certificate{own},
	}
}

func (a *Authority) sign(t T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("%v", err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, a.ca, key.Public(), a.key)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
