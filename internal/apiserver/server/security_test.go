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

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/test/pki"
)

// proxyClient sends requests on behalf of users by headers, as the API server's front proxy does.
type proxyClient struct{ client *http.Client }

func newProxyClient(certificates ...tls.Certificate) proxyClient {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(serving)
	return proxyClient{&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: pool, MinVersion: tls.VersionTLS12, Certificates: certificates,
	}}}}
}

// get sends a GET request of an administrator, and returns the response code.
func (c proxyClient) get(path string) int {
	GinkgoHelper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+address+path, http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set("X-Remote-User", "admin")
	request.Header.Set("X-Remote-Group", "system:masters")
	response, err := c.client.Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode
}

// do sends a request for a verb of an object that does not exist, and returns the response code.
func (c proxyClient) do(v subresource.Verb, version, user string, groups ...string) int {
	GinkgoHelper()
	path := strings.NewReplacer("{namespace}", "default", "{name}", "nobodys", "{port}", "22", "{protocol}",
		"tcp").Replace(v.Path(version))
	request, err := http.NewRequestWithContext(context.Background(), v.Method, "https://"+address+path, http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set("X-Remote-User", user)
	for _, group := range groups {
		request.Header.Add("X-Remote-Group", group)
	}
	response, err := c.client.Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode
}

// permission returns the verb and the resource in a role. Reading a resource without a name is list for Kubernetes.
func permission(v subresource.Verb) (verb, resource string) {
	switch {
	case v.Method == http.MethodPut:
		verb = "update"
	case v.Resource == "":
		verb = "list"
	default:
		verb = "get"
	}
	return verb, v.RBACName()
}

var _ = Describe("Authorization of virt-api", func() {
	verbs := (&subresource.API{}).Verbs(nil)
	denied := BeElementOf(http.StatusUnauthorized, http.StatusForbidden)
	const administrators = "system:masters"

	It("needs one permission for each verb, which allows only that verb", func() {
		proxied := newProxyClient(proxy.ClientCertificate(pki.FrontProxyName))
		known := map[string]bool{}
		for _, v := range verbs {
			verb, resource := permission(v)
			user := "only " + verb + " " + resource
			if !known[user] {
				known[user] = true
				allow(user, verb, resource)
			}
		}
		Expect(len(known)).To(BeNumerically(">", 30))
		for user := range known {
			for _, v := range verbs {
				verb, resource := permission(v)
				if user == "only "+verb+" "+resource {
					Eventually(func() int { return proxied.do(v, "v1", user) }).WithTimeout(startLimit).
						ShouldNot(denied, "%s %s", user, v.Path("v1"))
					Expect(proxied.do(v, "v1alpha3", user)).NotTo(denied, "%s %s", user, v.Path("v1alpha3"))
				} else {
					Expect(proxied.do(v, "v1", user)).To(Equal(http.StatusForbidden), "%s %s", user, v.Path("v1"))
				}
			}
		}
	})

	It("ignores the headers of clients that are not the front proxy", func() {
		untrusted := map[string]proxyClient{
			"without a certificate":                newProxyClient(),
			"with another name's certificate":      newProxyClient(proxy.ClientCertificate("somebody-else")),
			"with another authority's certificate": newProxyClient(pki.New(GinkgoT()).ClientCertificate(pki.FrontProxyName)),
		}
		for name, c := range untrusted {
			for _, v := range verbs {
				Expect(c.do(v, "v1", "admin", administrators)).To(denied, "%s: %s", name, v.Path("v1"))
			}
		}
		proxied := newProxyClient(proxy.ClientCertificate(pki.FrontProxyName))
		for _, v := range verbs {
			Expect(proxied.do(v, "v1", "admin", administrators)).NotTo(denied, v.Path("v1"))
		}
	})
})
