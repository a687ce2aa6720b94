// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pki issues certificates for tests.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"time"
)

// TB is the part of a test that an Authority uses. *testing.T and GinkgoT() implement it.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Authority is a CA.
type Authority struct {
	t    TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// New returns a new Authority.
func New(t TB) *Authority {
	t.Helper()
	a := &Authority{t: t}
	a.key, a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func (a *Authority) sign(template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatalf("make a key: %v", err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatalf("make a certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatalf("read the certificate: %v", err)
	}
	return key, cert
}

// Issue issues a certificate with a name as common name and DNS name, and one extended key usage.
func (a *Authority) Issue(name string, use x509.ExtKeyUsage) tls.Certificate {
	a.t.Helper()
	key, cert := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{use},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// IssueHost issues a certificate with a DNS name and no common name.
func (a *Authority) IssueHost(name string, uses ...x509.ExtKeyUsage) tls.Certificate {
	a.t.Helper()
	key, cert := a.sign(&x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: uses})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// PEM returns the CA certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Pool returns a pool with the CA certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}
