// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	certutil "k8s.io/client-go/util/cert"
)

// proxyName is the name in the certificate of the API server's proxy.
const proxyName = "front-proxy-client"

// frontProxy is the authority of the certificates that may speak for others.
type frontProxy struct {
	ca     *x509.Certificate
	key    crypto.Signer
	caFile string
}

func newProxy() frontProxy {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "front-proxy-ca"}, key)
	Expect(err).NotTo(HaveOccurred())
	pem, err := certutil.EncodeCertificates(ca)
	Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(GinkgoT().TempDir(), "front-proxy-ca.crt")
	Expect(os.WriteFile(file, pem, 0o600)).To(Succeed())
	return frontProxy{ca: ca, key: key, caFile: file}
}

// certificate is one of a name, by the proxy's authority.
func (p frontProxy) certificate(name string) tls.Certificate {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.ca, key.Public(), p.key)
	Expect(err).NotTo(HaveOccurred())
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// speakFor asks virt-api for a start in the name of an administrator, with these certificates, and returns the code.
func speakFor(vm string, certificates ...tls.Certificate) int {
	GinkgoHelper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(serving)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: pool, MinVersion: tls.VersionTLS12, Certificates: certificates,
	}}}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPut,
		"https://"+address+verbPath("v1", vm, "start"), strings.NewReader("{}"))
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set("X-Remote-User", "admin")
	request.Header.Set("X-Remote-Group", "system:masters")
	response, err := c.Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode
}
