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

	"github.com/vireo-project/vireo/internal/subresource"
	"github.com/vireo-project/vireo/test/pki"
)

// speaker sends requests in the name of others, as the API server's proxy does.
type speaker struct{ client *http.Client }

func newSpeaker(certificates ...tls.Certificate) speaker {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(serving)
	return speaker{&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: pool, MinVersion: tls.VersionTLS12, Certificates: certificates,
	}}}}
}

// ask asks for a verb of an object that is not there, and returns the code.
func (s speaker) ask(v subresource.Verb, version, user string, groups ...string) int {
	GinkgoHelper()
	path := strings.NewReplacer("{namespace}", "default", "{name}", "nobodys", "{port}", "22", "{protocol}", "tcp").Replace(v.Path(version))
	request, err := http.NewRequestWithContext(context.Background(), v.Method, "https://"+address+path, http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set("X-Remote-User", user)
	for _, group := range groups {
		request.Header.Add("X-Remote-Group", group)
	}
	response, err := s.client.Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode
}

// right is what a role says of a verb. Kubernetes calls it list to get what has no name.
func right(v subresource.Verb) (verb, resource string) {
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

var _ = Describe("the rights to virt-api", func() {
	verbs := (&subresource.API{}).Verbs(nil)
	refused := BeElementOf(http.StatusUnauthorized, http.StatusForbidden)
	const administrators = "system:masters"

	It("are one for each verb, and each is good for that verb alone", func() {
		proxied := newSpeaker(proxy.Speaker(pki.FrontProxyName))
		known := map[string]bool{}
		for _, v := range verbs {
			verb, resource := right(v)
			user := "only " + verb + " " + resource
			if !known[user] {
				known[user] = true
				allow(user, verb, resource)
			}
		}
		Expect(len(known)).To(BeNumerically(">", 30))
		for user := range known {
			for _, v := range verbs {
				verb, resource := right(v)
				if user == "only "+verb+" "+resource {
					Eventually(func() int { return proxied.ask(v, "v1", user) }).WithTimeout(startLimit).
						ShouldNot(refused, "%s %s", user, v.Path("v1"))
					Expect(proxied.ask(v, "v1alpha3", user)).NotTo(refused, "%s %s", user, v.Path("v1alpha3"))
				} else {
					Expect(proxied.ask(v, "v1", user)).To(Equal(http.StatusForbidden), "%s %s", user, v.Path("v1"))
				}
			}
		}
	})

	It("are not had by naming somebody who has them", func() {
		everybody := map[string]speaker{
			"without a certificate":                newSpeaker(),
			"with another name's certificate":      newSpeaker(proxy.Speaker("somebody-else")),
			"with another authority's certificate": newSpeaker(pki.New(GinkgoT()).Speaker(pki.FrontProxyName)),
		}
		for who, speaks := range everybody {
			for _, v := range verbs {
				Expect(speaks.ask(v, "v1", "admin", administrators)).To(refused, "%s: %s", who, v.Path("v1"))
			}
		}
		proxied := newSpeaker(proxy.Speaker(pki.FrontProxyName))
		for _, v := range verbs {
			Expect(proxied.ask(v, "v1", "admin", administrators)).NotTo(refused, v.Path("v1"))
		}
	})
})
