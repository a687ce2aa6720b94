// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// request is a CertificateSigningRequest of a component.
type request struct {
	spec     certificatesv1.CertificateSigningRequestSpec
	template x509.CertificateRequest
	key      crypto.Signer
}

func ecKey(t *testing.T, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newRequest returns a valid request after a change.
func newRequest(
	t *testing.T, role Role, subject Subject, change func(*request),
) certificatesv1.CertificateSigningRequestSpec {
	t.Helper()
	a := &request{
		spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: role.Signer(), Usages: role.usages(),
			Username: "system:serviceaccount:kubevirt:" + role.account,
			Extra:    map[string]certificatesv1.ExtraValue{nodeNameExtra: {"blue"}},
		},
		template: x509.CertificateRequest{Subject: pkix.Name{CommonName: subject.CommonName}, DNSNames: subject.DNSNames},
		key:      ecKey(t, elliptic.P256()),
	}
	if change != nil {
		change(a)
	}
	if a.spec.Request == nil {
		der, err := x509.CreateCertificateRequest(rand.Reader, &a.template, a.key)
		if err != nil {
			t.Fatal(err)
		}
		a.spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	return a.spec
}

// subjectOf returns the subject that a role's component requests on node blue.
func subjectOf(role Role) Subject {
	switch role.Name {
	case AgentServing.Name:
		return AgentSubject("blue")
	case AgentMigration.Name:
		return AgentMigrationSubject("blue")
	case AgentBackup.Name:
		return AgentBackupSubject("blue")
	case APIClient.Name:
		return APIClientSubject()
	case ExportProxyServing.Name:
		return ExportProxySubject("kubevirt")
	}
	return APIServingSubject("kubevirt")
}

func TestValidRequests(t *testing.T) {
	for _, role := range Roles() {
		spec := newRequest(t, role, subjectOf(role), nil)
		if _, err := role.Validate(&spec, "kubevirt"); err != nil {
			t.Errorf("%s: %v", role.Name, err)
		}
		found, ok := RoleOf(role.Signer())
		if !ok || found.Name != role.Name {
			t.Errorf("signer %s is that of %q", role.Signer(), found.Name)
		}
	}
	if _, ok := RoleOf("kubernetes.io/kubelet-serving"); ok {
		t.Error("the kubelets' signer is one of ours")
	}
}

func TestRolesAreSeparate(t *testing.T) {
	for _, role := range Roles() {
		for _, other := range Roles() {
			if role.Name == other.Name {
				continue
			}
			// The other role's account and subject, with this role's signer and usages.
			spec := newRequest(t, role, subjectOf(other),
				func(a *request) { a.spec.Username = "system:serviceaccount:kubevirt:" + other.account })
			if _, err := role.Validate(&spec, "kubevirt"); err == nil {
				t.Errorf("%s signs for %s", role.Name, other.Name)
			}
		}
	}
}

func TestInvalidRequests(t *testing.T) {
	elsewhere, err := url.Parse("spiffe://elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	weakRSA, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		role    Role
		change  func(*request)
		reason  string
		message string
	}{
		{"account of another namespace", AgentServing, func(a *request) {
			a.spec.Username = "system:serviceaccount:team:kubevirt-handler"
		}, ReasonWrongRequester, "not system:serviceaccount:team:kubevirt-handler"},
		{"administrator", APIClient, func(a *request) { a.spec.Username = "admin" }, ReasonWrongRequester, "only system:serviceaccount:kubevirt:kubevirt-apiserver"},
		{"agent as virt-api", APIClient, func(a *request) {
			a.spec.Username = "system:serviceaccount:kubevirt:kubevirt-handler"
		}, ReasonWrongRequester, "not system:serviceaccount:kubevirt:kubevirt-handler"},
		{"token without a node", AgentServing, func(a *request) { a.spec.Extra = nil }, ReasonWrongRequester, "names no node"},
		{"token with an empty node", AgentServing, func(a *request) {
			a.spec.Extra[nodeNameExtra] = []string{""}
		}, ReasonWrongRequester, "names no node"},
		{"token with two nodes", AgentServing, func(a *request) {
			a.spec.Extra[nodeNameExtra] = []string{"blue", "red"}
		}, ReasonWrongRequester, "names no node"},
		{"another node", AgentServing, func(a *request) {
			a.spec.Extra[nodeNameExtra] = []string{"red"}
		}, ReasonWrongSubject, `must be ["red.virt-handler"]`},
		{"another name beside", AgentServing, func(a *request) {
			a.template.DNSNames = append(a.template.DNSNames, "red.virt-handler")
		}, ReasonWrongSubject, "DNS names"},
		{"wildcard", AgentServing, func(a *request) { a.template.DNSNames = []string{"*.virt-handler"} }, ReasonWrongSubject, "DNS names"},
		{"no name", AgentServing, func(a *request) { a.template.DNSNames = nil }, ReasonWrongSubject, "DNS names"},
		{"Service of another namespace", APIServing, func(a *request) {
			a.template.DNSNames = []string{"virt-api.team.svc"}
		}, ReasonWrongSubject, `must be ["virt-api.kubevirt.svc"]`},
		{"common name of virt-api", AgentServing, func(a *request) {
			a.template.Subject.CommonName = "kubevirt.io:virt-api"
		}, ReasonWrongSubject, "the subject is"},
		{"another common name", APIClient, func(a *request) { a.template.Subject.CommonName = "admin" }, ReasonWrongSubject, "the subject is"},
		{"organization", APIClient, func(a *request) {
			a.template.Subject.Organization = []string{"system:masters"}
		}, ReasonWrongSubject, "the subject is"},
		{"organization without a common name", AgentServing, func(a *request) {
			a.template.Subject.Organization = []string{"system:masters"}
		}, ReasonWrongSubject, "the subject is"},
		{"attribute that Go does not know", APIClient, func(a *request) {
			a.template.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3},
				Value: "kubevirt.io:virt-api"}, {Type: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: "x"}}
		}, ReasonWrongSubject, "the subject is"},
		{"address", AgentServing, func(a *request) {
			a.template.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)}
		}, ReasonWrongSubject, "addresses and URIs"},
		{"mail address", APIClient, func(a *request) { a.template.EmailAddresses = []string{"a@b.c"} }, ReasonWrongSubject, "addresses and URIs"},
		{"URI", APIServing, func(a *request) { a.template.URIs = []*url.URL{elsewhere} }, ReasonWrongSubject, "addresses and URIs"},
		{"authority", APIServing, func(a *request) {
			a.template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19},
				Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}
		}, ReasonWrongSubject, "extension 2.5.29.19"},
		{"also as a client", AgentServing, func(a *request) {
			a.spec.Usages = append(a.spec.Usages, certificatesv1.UsageClientAuth)
		}, ReasonWrongUsages, `not for "client auth"`},
		{"signing", APIClient, func(a *request) {
			a.spec.Usages = append(a.spec.Usages, certificatesv1.UsageCertSign)
		}, ReasonWrongUsages, `not for "cert sign"`},
		{"not for what it is for", APIClient, func(a *request) {
			a.spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}
		}, ReasonWrongUsages, `for "client auth"`},
		{"short curve", AgentServing, func(a *request) { a.key = ecKey(t, elliptic.P224()) }, ReasonWeakKey, "224 bits"},
		{"short RSA key", AgentServing, func(a *request) { a.key = weakRSA }, ReasonWeakKey, "1024 bits"},
		{"no PEM", APIClient, func(a *request) { a.spec.Request = []byte("nonsense") }, ReasonMalformed, "not one PEM block"},
		{"no request in it", APIClient, func(a *request) {
			a.spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("nonsense")})
		}, ReasonMalformed, "cannot be read"},
		{"another signer", APIClient, func(a *request) { a.spec.SignerName = AgentServing.Signer() }, ReasonMalformed, "is for signer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := newRequest(t, c.role, subjectOf(c.role), c.change)
			_, err := c.role.Validate(&spec, "kubevirt")
			var denied *DeniedError
			if !errors.As(err, &denied) || denied.Reason != c.reason || !strings.Contains(denied.Message, c.message) {
				t.Errorf("%#v", err)
			}
		})
	}
}

func TestSignatureOfARequest(t *testing.T) {
	spec := newRequest(t, APIClient, APIClientSubject(), nil)
	block, _ := pem.Decode(spec.Request)
	block.Bytes[len(block.Bytes)-1] ^= 1
	spec.Request = pem.EncodeToMemory(block)
	_, err := APIClient.Validate(&spec, "kubevirt")
	var denied *DeniedError
	if !errors.As(err, &denied) || denied.Reason != ReasonMalformed {
		t.Errorf("a request whose signature is wrong: %v", err)
	}
}
