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
