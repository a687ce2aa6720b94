// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"os"
	"path/filepath"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// proxyName is in the certificate with which the API server speaks for others.
const proxyName = "front-proxy-client"

// trustProxy gives the API server an aggregation layer: a certificate of its own, and the headers that go with it.
func trustProxy(env *envtest.Environment, dir string) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "front-proxy-ca"}, caKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: proxyName},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	own, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for name, certificate := range map[string]*x509.Certificate{"proxy-ca.crt": ca, "proxy.crt": own} {
		if files[name], err = certutil.EncodeCertificates(certificate); err != nil {
			return err
		}
	}
	if files["proxy.key"], err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	env.ControlPlane.GetAPIServer().Configure().
		Set("proxy-client-cert-file", filepath.Join(dir, "proxy.crt")).
		Set("proxy-client-key-file", filepath.Join(dir, "proxy.key")).
		Set("requestheader-client-ca-file", filepath.Join(dir, "proxy-ca.crt")).
		Set("requestheader-allowed-names", proxyName).
		Set("requestheader-username-headers", "X-Remote-User").
		Set("requestheader-group-headers", "X-Remote-Group").
		Set("requestheader-extra-headers-prefix", "X-Remote-Extra-")
	return nil
}
