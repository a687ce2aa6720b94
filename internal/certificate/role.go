// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/x509"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/export/content"
)

// BundleName is the name of the ConfigMap with the CA certificates, one key for each role. KubeVirt's.
const BundleName = "kubevirt-ca"

// PublicBundle is the key of the CA certificates for clients outside of the installation, which connect to virt-exportproxy. KubeVirt's.
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
	// Component uses the role's certificates. It is the name of its workload and the value of the label kubevirt.io of its Pods.
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
	// AgentBackup is the role of agents as clients of the exporters that read the disks of their guests. Each certificate is for one node.
	AgentBackup = Role{
		Name: "virt-handler-backup", Component: "virt-handler", account: handlerAccount,
		purposes: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, usageNames: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		subject: perNode(AgentBackupSubject),
	}
	// APIClient is the role of virt-api as a client of the agents.
	APIClient = Role{
		Name: "virt-api-client", Component: "virt-api", account: apiAccount,
		purposes: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, usageNames: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		subject: func(requester) (Subject, error) { return APIClientSubject(), nil },
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
