// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// FrontProxyName is the common name of the front proxy's client certificate.
const FrontProxyName = "front-proxy-client"

// FrontProxy configures the aggregation layer of an API server that is not started yet, with a certificate in dir. It
// returns the CA of the front proxy.
func FrontProxy(t TB, env *envtest.Environment, dir string) *Authority {
	t.Helper()
	a := New(t)
	own := a.Issue(FrontProxyName, x509.ExtKeyUsageClientAuth)
	key, err := keyutil.MarshalPrivateKeyToPEM(own.PrivateKey)
	if err != nil {
		t.Fatalf("write the proxy's key: %v", err)
	}
	arguments := env.ControlPlane.GetAPIServer().Configure()
	for argument, content := range map[string][]byte{
		"requestheader-client-ca-file": encode(a.cert.Raw), "proxy-client-cert-file": encode(own.Certificate[0]), "proxy-client-key-file": key,
	} {
		file := filepath.Join(dir, argument)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatalf("write what the proxy needs: %v", err)
		}
		arguments.Set(argument, file)
	}
	arguments.
		Set("requestheader-allowed-names", FrontProxyName).
		Set("requestheader-username-headers", "X-Remote-User").
		Set("requestheader-group-headers", "X-Remote-Group").
		Set("requestheader-extra-headers-prefix", "X-Remote-Extra-")
	return a
}

// ClientCertificate issues a client certificate with a common name.
func (a *Authority) ClientCertificate(name string) tls.Certificate {
	a.t.Helper()
	return a.Issue(name, x509.ExtKeyUsageClientAuth)
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}
