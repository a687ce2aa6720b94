// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pki creates the cluster's certificates. There are three CAs:
// one for clients and servers, one for the front proxy (the API server does not
// accept the same CA for both), and one for etcd.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// Lifetime is the lifetime of every certificate. A local cluster does not exist that long.
const Lifetime = 365 * 24 * time.Hour

// Names of the authorities.
const (
	Cluster    = "ca"
	FrontProxy = "front-proxy-ca"
	Etcd       = "etcd-ca"
)

// Leaf is a certificate to create.
type Leaf struct {
	// File is the name of its files without the extension.
	File string
	// Authority signs it.
	Authority string
	// CommonName and Organization are a client's user and group.
	CommonName   string
	Organization string
	// Names and Addresses are those of a server.
	Names     []string
	Addresses []netip.Addr
}

type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// Make creates the authorities, the leaves and the key that signs service
// account tokens into the directory.
func Make(directory string, now time.Time, leaves []Leaf) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("make the folder of the certificates: %w", err)
	}
	authorities := map[string]authority{}
	for _, name := range []string{Cluster, FrontProxy, Etcd} {
		a, err := makeAuthority(directory, name, now)
		if err != nil {
			return err
		}
		authorities[name] = a
	}
	for _, leaf := range leaves {
		a, ok := authorities[leaf.Authority]
		if !ok {
			return fmt.Errorf("certificate %s: there is no authority %q", leaf.File, leaf.Authority)
		}
		if err := makeLeaf(directory, now, a, leaf); err != nil {
			return err
		}
	}
	return makeServiceAccountKey(directory)
}

func makeAuthority(directory, name string, now time.Time) (authority, error) {
	template, err := newTemplate(now)
	if err != nil {
		return authority{}, err
	}
	template.Subject = pkix.Name{CommonName: "vireo-cluster-" + name}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key, err := newKey()
	if err != nil {
		return authority{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, fmt.Errorf("sign authority %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return authority{}, fmt.Errorf("read authority %s back: %w", name, err)
	}
	return authority{certificate, key}, write(directory, name, der, key)
}

func makeLeaf(directory string, now time.Time, a authority, leaf Leaf) error {
	template, err := newTemplate(now)
	if err != nil {
		return err
	}
	template.Subject = pkix.Name{CommonName: leaf.CommonName}
	if leaf.Organization != "" {
		template.Subject.Organization = []string{leaf.Organization}
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(leaf.Names)+len(leaf.Addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	template.DNSNames = leaf.Names
	for _, address := range leaf.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign certificate %s: %w", leaf.File, err)
	}
	return write(directory, leaf.File, der, key)
}

func makeServiceAccountKey(directory string) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode the service accounts' key: %w", err)
	}
	if err := writePEM(filepath.Join(directory, "sa.pub"), "PUBLIC KEY", public); err != nil {
		return err
	}
	return writeKey(filepath.Join(directory, "sa.key"), key)
}

func newTemplate(now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	// Tolerate clocks that are slightly behind.
	return &x509.Certificate{SerialNumber: serial, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(Lifetime)}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("draw a key: %w", err)
	}
	return key, nil
}

func write(directory, name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writePEM(filepath.Join(directory, name+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	return writeKey(filepath.Join(directory, name+".key"), key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	return nil
}

// Ends returns when a certificate expires.
func Ends(path string) (time.Time, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("read a certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}, fmt.Errorf("%s contains no certificate", path)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", path, err)
	}
	return certificate.NotAfter, nil
}
