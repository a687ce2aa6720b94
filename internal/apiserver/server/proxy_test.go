// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// startAsAdmin sends a request to start a VM with the front proxy's headers of an administrator and with client
// certificates. It returns the response code.
func startAsAdmin(vm string, certificates ...tls.Certificate) int {
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
