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

// Reasons of the conditions of requests that are approved or denied.
const (
	ReasonApproved       = "KubeVirtComponent"
	ReasonWrongRequester = "WrongRequester"
	ReasonWrongSubject   = "WrongSubject"
	ReasonWrongUsages    = "WrongUsages"
	ReasonWeakKey        = "WeakKey"
	ReasonMalformed      = "Malformed"
)

// DeniedError is returned for a request that must be denied.
type DeniedError struct {
	// Reason and Message are those of the request's condition Denied.
	Reason, Message string
}

// Error implements error.
func (e *DeniedError) Error() string { return e.Message }

func deny(reason, format string, args ...any) error {
	return &DeniedError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Minimum sizes of an RSA key and of an elliptic curve.
const (
	minRSABits   = 2048
	minCurveBits = 256
)

// subjectAltName is the only extension that a request may contain. RFC 5280, 4.2.1.6.
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// Validate validates a request for a certificate of the role, in the namespace of the installation. It returns the parsed
// request, or a DeniedError. The requester's name and node are trustworthy: only the API server can set them.
func (r Role) Validate(spec *certificatesv1.CertificateSigningRequestSpec, namespace string) (*x509.CertificateRequest, error) {
	if spec.SignerName != r.Signer() {
		return nil, deny(ReasonMalformed, "the request is for signer %q and not for %q", spec.SignerName, r.Signer())
	}
	if account := r.Requester(namespace); spec.Username != account {
		return nil, deny(ReasonWrongRequester, "only %s gets certificates of %s, not %s", account, r.Signer(), spec.Username)
	}
	if err := r.validateUsages(spec.Usages); err != nil {
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
	if err := validateKey(request.PublicKey); err != nil {
		return nil, err
	}
	return request, want.validate(request)
}

// nodeOf returns the node that the requester's token is bound to, or "".
func nodeOf(spec *certificatesv1.CertificateSigningRequestSpec) string {
	if nodes := spec.Extra[nodeNameExtra]; len(nodes) == 1 {
		return nodes[0]
	}
	return ""
}

func (r Role) validateUsages(usages []certificatesv1.KeyUsage) error {
	allowed := append(r.usages(), certificatesv1.UsageKeyEncipherment)
	for _, usage := range usages {
		if !slices.Contains(allowed, usage) {
			return deny(ReasonWrongUsages, "certificates of %s are not for %q", r.Signer(), usage)
		}
	}
	for _, purpose := range r.usageNames {
		if !slices.Contains(usages, purpose) {
			return deny(ReasonWrongUsages, "certificates of %s are for %q, which the request does not contain", r.Signer(), purpose)
		}
	}
	return nil
}

func parse(raw []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, deny(ReasonMalformed, "spec.request is not one PEM block of type CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, deny(ReasonMalformed, "spec.request cannot be read: %s", err)
	}
	// The signature proves that the requester has the private key.
	if err := request.CheckSignature(); err != nil {
		return nil, deny(ReasonMalformed, "the signature of spec.request is wrong: %s", err)
	}
	return request, nil
}

func validateKey(key any) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if bits := k.Curve.Params().BitSize; bits < minCurveBits {
			return deny(ReasonWeakKey, "the key's curve has %d bits, and at least %d are needed", bits, minCurveBits)
		}
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits {
			return deny(ReasonWeakKey, "the RSA key has %d bits, and at least %d are needed", bits, minRSABits)
		}
	case ed25519.PublicKey:
	default:
		return deny(ReasonWeakKey, "keys of type %T are not known", key)
	}
	return nil
}

// validate returns a DeniedError for a request that contains anything but the subject.
func (s Subject) validate(request *x509.CertificateRequest) error {
	attributes := 0
	if s.CommonName != "" {
		attributes = 1
	}
	if subject := request.Subject; subject.CommonName != s.CommonName || len(subject.Names) != attributes {
		return deny(ReasonWrongSubject, "the subject is %q and must be %q", subject, s)
	}
	if !slices.Equal(request.DNSNames, s.DNSNames) {
		return deny(ReasonWrongSubject, "the DNS names are %q and must be %q", request.DNSNames, s.DNSNames)
	}
	if len(request.IPAddresses)+len(request.EmailAddresses)+len(request.URIs) > 0 {
		return deny(ReasonWrongSubject, "addresses and URIs are not certified")
	}
	for _, extension := range request.Extensions {
		if !extension.Id.Equal(subjectAltName) {
			return deny(ReasonWrongSubject, "extension %s is not certified", extension.Id)
		}
	}
	return nil
}

// String returns the distinguished name.
func (s Subject) String() string {
	if s.CommonName == "" {
		return ""
	}
	return "CN=" + s.CommonName
}
