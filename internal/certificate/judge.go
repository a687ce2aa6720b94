// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// Reasons of the conditions of requests that are approved or refused.
const (
	ReasonApproved       = "KubeVirtComponent"
	ReasonWrongRequester = "WrongRequester"
	ReasonWrongSubject   = "WrongSubject"
	ReasonWrongUsages    = "WrongUsages"
	ReasonWeakKey        = "WeakKey"
	ReasonMalformed      = "Malformed"
)

// RefusedError says why a certificate is not signed.
type RefusedError struct {
	// Reason is one word for programs, and Message a sentence for people.
	Reason, Message string
}

// Error is the message.
func (r *RefusedError) Error() string { return r.Message }

func refuse(reason, format string, args ...any) error {
	return &RefusedError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// minRSABits is the least strength of an RSA key, and minCurveBits that of an elliptic curve.
const (
	minRSABits   = 2048
	minCurveBits = 256
)

// subjectAltName is the one extension that a request may ask for. RFC 5280, 4.2.1.6.
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// Judge decides whether a request for a certificate of the role is granted in an installation's namespace. It gives the
// request that was read, or a RefusedError. The API server vouches for who asks: nobody else can write those fields.
func (r Role) Judge(spec *certificatesv1.CertificateSigningRequestSpec, namespace string) (*x509.CertificateRequest, error) {
	if spec.SignerName != r.Signer() {
		return nil, refuse(ReasonMalformed, "the request is for signer %q and not for %q", spec.SignerName, r.Signer())
	}
	if account := r.Requester(namespace); spec.Username != account {
		return nil, refuse(ReasonWrongRequester, "only %s gets certificates of %s, not %s", account, r.Signer(), spec.Username)
	}
	if err := r.judgeUsages(spec.Usages); err != nil {
		return nil, err
	}
	want, err := r.subject(requester{namespace: namespace, node: nodeOf(spec)})
	if err != nil {
		return nil, err
	}
	request, err := parse(spec.Request)
	if err != nil {
		return nil, err
	}
	if err := judgeKey(request.PublicKey); err != nil {
		return nil, err
	}
	return request, want.judge(request)
}

// nodeOf is the node that the requester's token is bound to.
func nodeOf(spec *certificatesv1.CertificateSigningRequestSpec) string {
	if nodes := spec.Extra[nodeNameExtra]; len(nodes) == 1 {
		return nodes[0]
	}
	return ""
}

func (r Role) judgeUsages(usages []certificatesv1.KeyUsage) error {
	allowed := append(r.usages(), certificatesv1.UsageKeyEncipherment)
	for _, usage := range usages {
		if !slices.Contains(allowed, usage) {
			return refuse(ReasonWrongUsages, "certificates of %s are not for %q", r.Signer(), usage)
		}
	}
	for _, purpose := range r.kubernetes {
		if !slices.Contains(usages, purpose) {
			return refuse(ReasonWrongUsages, "certificates of %s are for %q, which the request does not ask for", r.Signer(), purpose)
		}
	}
	return nil
}

func parse(raw []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, refuse(ReasonMalformed, "spec.request is not one PEM block of type CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, refuse(ReasonMalformed, "spec.request cannot be read: %s", err)
	}
	// Whoever asks must have the key.
	if err := request.CheckSignature(); err != nil {
		return nil, refuse(ReasonMalformed, "the signature of spec.request is wrong: %s", err)
	}
	return request, nil
}

func judgeKey(key any) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if bits := k.Curve.Params().BitSize; bits < minCurveBits {
			return refuse(ReasonWeakKey, "the key's curve has %d bits, and at least %d are needed", bits, minCurveBits)
		}
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits {
			return refuse(ReasonWeakKey, "the RSA key has %d bits, and at least %d are needed", bits, minRSABits)
		}
	case ed25519.PublicKey:
	default:
		return refuse(ReasonWeakKey, "keys of type %T are not known", key)
	}
	return nil
}

// judge refuses a request that asks for anybody or anything else.
func (s Subject) judge(request *x509.CertificateRequest) error {
	attributes := 0
	if s.CommonName != "" {
		attributes = 1
	}
	if subject := request.Subject; subject.CommonName != s.CommonName || len(subject.Names) != attributes {
		return refuse(ReasonWrongSubject, "the subject is %q and must be %q", subject, s)
	}
	if !slices.Equal(request.DNSNames, s.DNSNames) {
		return refuse(ReasonWrongSubject, "the DNS names are %q and must be %q", request.DNSNames, s.DNSNames)
	}
	if len(request.IPAddresses)+len(request.EmailAddresses)+len(request.URIs) > 0 {
		return refuse(ReasonWrongSubject, "addresses and URIs are not certified")
	}
	for _, extension := range request.Extensions {
		if !extension.Id.Equal(subjectAltName) {
			return refuse(ReasonWrongSubject, "extension %s is not certified", extension.Id)
		}
	}
	return nil
}

// String is the subject as certificates show it.
func (s Subject) String() string {
	if s.CommonName == "" {
		return ""
	}
	return "CN=" + s.CommonName
}
