// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package qemutls makes the certificates with which the two QEMUs of one migration authenticate each other: an
// authority, a certificate for the target's QEMU and one for the source's. The authority's key is discarded at once. So
// no other QEMU can receive or send the guest, not even one with the certificates of another migration.
package qemutls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// lifetime is longer than a migration can take. QEMU checks the dates when it opens a connection: at the start, and
	// again when a post-copy has lost its connection.
	lifetime = 24 * time.Hour
	// tolerance is how far the nodes' clocks may differ.
	tolerance = time.Hour
)

// Files are the certificates and the key of one QEMU.
type Files struct {
	// CA is the authority's certificate, Certificate and Key are the QEMU's own; all are PEM.
	CA          []byte `json:"ca"`
	Certificate []byte `json:"certificate"`
	Key         []byte `json:"key"`
	// Server reports whether the files are the target's.
	Server bool `json:"server,omitempty"`
}

// Pair is the files of both QEMUs of a migration.
type Pair struct {
	// Server is for the target's QEMU, Client for the source's.
	Server, Client Files
}

// Name returns the name of the target's QEMU in its certificate, by the UID of the migration.
func Name(migration types.UID) string { return "migration-" + string(migration) }

// New makes the certificates of a migration. Address is where the target's QEMU listens; it may be left out.
func New(migration types.UID, address netip.Addr, now time.Time) (Pair, error) {
	authority, err := newAuthority(migration, now)
	if err != nil {
		return Pair{}, fmt.Errorf("create the migration's authority: %w", err)
	}
	server := authority.template(2, Name(migration), x509.ExtKeyUsageServerAuth)
	server.DNSNames = []string{Name(migration)}
	if address.IsValid() {
		server.IPAddresses = append(server.IPAddresses, address.Unmap().AsSlice())
	}
	pair := Pair{}
	if pair.Server, err = authority.issue(server); err != nil {
		return Pair{}, fmt.Errorf("create the target's certificate: %w", err)
	}
	if pair.Client, err = authority.issue(
		authority.template(3, "source-"+string(migration), x509.ExtKeyUsageClientAuth)); err != nil {
		return Pair{}, fmt.Errorf("create the source's certificate: %w", err)
	}
	pair.Server.Server = true
	return pair, nil
}

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(migration types.UID, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority-" + string(migration)},
		NotBefore: now.Add(-tolerance), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &authority{certificate: certificate, key: key}, err
}

func (a *authority) template(serial int64, name string, usage x509.ExtKeyUsage) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: a.certificate.NotBefore, NotAfter: a.certificate.NotAfter, BasicConstraintsValid: true,
		// QEMU refuses a certificate that may not do what it is used for (crypto/tlscredsx509.c).
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
}

func (a *authority) issue(template *x509.Certificate) (Files, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Files{}, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Files{}, err
	}
	return Files{
		CA:          pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}),
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}
