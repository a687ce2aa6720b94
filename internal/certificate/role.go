// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package certificate issues and verifies the certificates with which virt-api and the node agents authenticate each
// other, and with which virt-api authenticates to the API server.
//
// Each Role has a CA of its own, so that a stolen certificate or CA key is useless for other roles. Processes generate
// their private keys and keep them in memory; they request certificates with CertificateSigningRequests (Source), and
// virt-controller signs those that Role.Validate accepts. The keys of CAs are in Secrets that only virt-controller
// reads (Authority). The certificates of all CAs are in one ConfigMap (Trust).
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

	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// BundleName is the name of the ConfigMap with the CA certificates, one key for each role. KubeVirt's.
const BundleName = "kubevirt-ca"

// PublicBundle is the key of the CA certificates for clients outside of the installation, which connect to
// virt-exportproxy. KubeVirt's.
const PublicBundle = "ca-bundle"

// AuthorityLabelValue is the value of the label kubevirt.io of the CAs' Secrets.
const AuthorityLabelValue = "certificate-authority"

// nodeNameExtra is the key of a user's extra attributes with the node that the user's token is bound to.
// Source: kubernetes staging/src/k8s.io/apiserver/pkg/authentication/serviceaccount/util.go, NodeNameKey.
const nodeNameExtra = "authentication.kubernetes.io/node-name"

// serviceAccountPrefix starts the user name of a service account. Source: as above, MakeUsername.
const serviceAccountPrefix = "system:serviceaccount:"

// Service accounts that may request certificates.
const (
	handlerAccount = "kubevirt-handler"
	apiAccount     = "kubevirt-apiserver"
	proxyAccount   = "kubevirt-exportproxy"
)

// Role is the purpose of a certificate. A certificate of one role is not accepted for another.
type Role struct {
	// Name is the key of the role's CA certificates in the ConfigMap BundleName.
	Name string
	// Component uses the role's certificates. It is the name of its workload and the value of the label kubevirt.io of its
	// Pods.
	Component string
	// account is the service account that may request certificates.
	account string
	// purposes are the extended key usages of certificates, and usageNames their names in the Kubernetes API.
	purposes   []x509.ExtKeyUsage
	usageNames []certificatesv1.KeyUsage
	// subject returns the only subject for which a requester gets a certificate.
	subject func(requester) (Subject, error)
}

// Subject is the subject of a certificate. Server certificates have DNS names, and client certificates a common name.
type Subject struct {
	CommonName string
	DNSNames   []string
}

// requester is the process that requests a certificate.
type requester struct {
	namespace string
	node      string
}

// Usages of server certificates.
var (
	serverPurposes   = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serverUsageNames = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}
)

// perNode returns the subject function of a role whose certificates are for one node each, the requester's.
func perNode(subject func(node string) Subject) func(requester) (Subject, error) {
	return func(r requester) (Subject, error) {
		if r.node == "" {
			return Subject{}, deny(ReasonWrongRequester, "the requester's token names no node: it must be bound to a Pod")
		}
		return subject(r.node), nil
	}
}

// The roles.
var (
	// AgentServing is the role of the agents' servers, to which virt-api connects. Each certificate is for one node.
	AgentServing = Role{
		Name: "virt-handler-serving", Component: "virt-handler", account: handlerAccount,
		purposes: serverPurposes, usageNames: serverUsageNames,
		subject: perNode(AgentSubject),
	}
	// AgentMigration is the role of agents in a migration: the source's agent is the client, the target's the server. Each
	// certificate is for one node.
	AgentMigration = Role{
		Name: "virt-handler-migration", Component: "virt-handler", account: handlerAccount,
		purposes:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		usageNames: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth},
		subject:    perNode(AgentMigrationSubject),
	}
	// AgentBackup is the role of agents as clients of the exporters that read the disks of their guests. Each certificate
	// is for one node.
	AgentBackup = Role{
		Name: "virt-handler-backup", Component: "virt-handler", account: handlerAccount,
		purposes:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		usageNames: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}, subject: perNode(AgentBackupSubject),
	}
	// APIClient is the role of virt-api as a client of the agents.
	APIClient = Role{
		Name: "virt-api-client", Component: "virt-api", account: apiAccount,
		purposes:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		usageNames: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		subject:    func(requester) (Subject, error) { return APIClientSubject(), nil },
	}
	// APIServing is the role of virt-api's server, to which the API server's aggregation layer connects.
	APIServing = Role{
		Name: "virt-api-serving", Component: "virt-api", account: apiAccount,
		purposes: serverPurposes, usageNames: serverUsageNames,
		subject: func(r requester) (Subject, error) { return APIServingSubject(r.namespace), nil },
	}
	// ExportProxyServing is the role of virt-exportproxy's server, to which an Ingress or a Route connects.
	ExportProxyServing = Role{
		Name: "virt-exportproxy-serving", Component: "virt-exportproxy", account: proxyAccount,
		purposes: serverPurposes, usageNames: serverUsageNames,
		subject: func(r requester) (Subject, error) { return ExportProxySubject(r.namespace), nil },
	}
)

// Roles returns all roles.
func Roles() []Role {
	return []Role{AgentServing, AgentMigration, AgentBackup, APIClient, APIServing, ExportProxyServing}
}

// RoleOf returns the role of a signer, if it is one of Roles.
func RoleOf(signer string) (Role, bool) {
	roles := Roles()
	at := slices.IndexFunc(roles, func(r Role) bool { return r.Signer() == signer })
	if at < 0 {
		return Role{}, false
	}
	return roles[at], true
}

// Signer returns the signerName of the role's CertificateSigningRequests.
func (r Role) Signer() string { return "kubevirt.io/" + r.Name }

// Requester returns the user that may request certificates of the role, in the namespace of the installation.
func (r Role) Requester(namespace string) string {
	return serviceAccountPrefix + namespace + ":" + r.account
}

// AuthoritySecret returns the name of the Secret with the CA's keys.
func (r Role) AuthoritySecret() string { return "kubevirt-" + r.Name + "-ca" }

// AgentSubject returns the subject of a node's agent as a server of virt-api.
func AgentSubject(node string) Subject {
	return Subject{DNSNames: []string{agentapi.ServerName(node)}}
}

// AgentMigrationSubject returns the subject of a node's agent in connections between agents.
func AgentMigrationSubject(node string) Subject {
	return Subject{DNSNames: []string{agentapi.MigrationName(node)}}
}

// AgentBackupSubject returns the subject of a node's agent as a client of exporters.
func AgentBackupSubject(node string) Subject {
	return Subject{DNSNames: []string{agentapi.BackupName(node)}}
}

// APIClientSubject returns the subject of virt-api as a client of agents.
func APIClientSubject() Subject { return Subject{CommonName: agentapi.ClientName} }

// APIServingSubject returns the subject of virt-api's Service.
func APIServingSubject(namespace string) Subject {
	return Subject{DNSNames: []string{fmt.Sprintf("%s.%s.svc", agentapi.ServiceName, namespace)}}
}

// ExportProxySubject returns the subject of virt-exportproxy's Service.
func ExportProxySubject(namespace string) Subject {
	return Subject{DNSNames: []string{fmt.Sprintf("%s.%s.svc", content.ProxyService, namespace)}}
}

// usages returns the usages of a request. Key encipherment is not among them: it is only for RSA.
func (r Role) usages() []certificatesv1.KeyUsage {
	return append([]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}, r.usageNames...)
}

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

// Validate validates a request for a certificate of the role, in the namespace of the installation. It returns the
// parsed request, or a DeniedError. The requester's name and node are trustworthy: only the API server can set them.
func (r Role) Validate(
	spec *certificatesv1.CertificateSigningRequestSpec, namespace string,
) (*x509.CertificateRequest, error) {
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
			return deny(ReasonWrongUsages, "certificates of %s are for %q, which the request does not contain", r.Signer(),
				purpose)
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
