// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// dial connects to virt-api with at most a version of TLS.
func dial(newest uint16) (*tls.Conn, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(serving)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, MaxVersion: newest}}
	conn, err := dialer.DialContext(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	secured, ok := conn.(*tls.Conn)
	Expect(ok).To(BeTrue())
	return secured, nil
}

var _ = Describe("TLS of virt-api", func() {
	configure := func(c *v1.TLSConfiguration) {
		GinkgoHelper()
		kv := &v1.KubeVirt{}
		kv.Spec.Configuration.TLSConfiguration = c
		Expect(configuration.Set(kv)).To(Succeed())
	}
	AfterEach(func() { configure(nil) })

	It("follows the configuration at each handshake, and keeps open connections", func() {
		before, err := dial(tls.VersionTLS12)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = before.Close() }()

		configure(&v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS13})
		_, err = dial(tls.VersionTLS12)
		Expect(err).To(MatchError(ContainSubstring("protocol version")))
		after, err := dial(tls.VersionTLS13)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Close()).To(Succeed())

		_, err = before.Write([]byte("GET /healthz HTTP/1.1\r\nHost: virt-api\r\nConnection: close\r\n\r\n"))
		Expect(err).NotTo(HaveOccurred())
		head := make([]byte, len("HTTP/1.1"))
		_, err = before.Read(head)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(head)).To(Equal("HTTP/1.1"))
	})

	It("uses the configured ciphers", func() {
		for _, suite := range []uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256} {
			configure(&v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS12, Ciphers: []string{tls.CipherSuiteName(suite)}})
			conn, err := dial(tls.VersionTLS12)
			Expect(err).NotTo(HaveOccurred())
			Expect(tls.CipherSuiteName(conn.ConnectionState().CipherSuite)).To(Equal(tls.CipherSuiteName(suite)))
			Expect(conn.Close()).To(Succeed())
		}
	})
})
