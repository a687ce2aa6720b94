// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/x509"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// BundleName is the ConfigMap with the certificates of the authorities, one key for each role. KubeVirt's name.
const BundleName = "kubevirt-ca"

// AuthorityLabelValue is the value of the label kubevirt.io on the Secrets of the authorities.
const AuthorityLabelValue = "certificate-authority"

// nodeNameExtra is where the API server says to which node a token is bound.
// Source: kubernetes staging/src/k8s.io/apiserver/pkg/authentication/serviceaccount/util.go, NodeNameKey.
const nodeNameExtra = "authentication.kubernetes.io/node-name"

// Accounts of those who may ask for certificates.
const (
	handlerAccount = "kubevirt-handler"
	apiAccount     = "kubevirt-apiserver"
)

// Role is a part that a certificate lets its holder play.
type Role struct {
	// Name is the key of its authority in the ConfigMap of bundles.
	Name string
	// Component has its certificates: the name of what runs it, and the value of the label kubevirt.io of its Pods.
	Component string
	// account may ask for its certificates.
	account string
	// purposes are what they are for, and kubernetes are Kubernetes' names of that.
	purposes   []x509.ExtKeyUsage
	kubernetes []certificatesv1.KeyUsage
	// subject is whom a certificate is for.
	subject func(requester) (Subject, error)
}

// Subject is whom a certificate is for. Servers have names of hosts and clients have a common name.
type Subject struct {
	CommonName string
	DNSNames   []string
}

// requester is who asks for a certificate.
type requester struct {
	namespace string
	node      string
}

// What the certificates of servers are for.
var (
	serving             = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	servingInKubernetes = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}
)

// ofNode is the subject of a role whose certificates are for one node each: the requester's.
func ofNode(subject func(node string) Subject) func(requester) (Subject, error) {
	return func(r requester) (Subject, error) {
		if r.node == "" {
			return Subject{}, refuse(ReasonWrongRequester, "the requester's token names no node: it must be bound to a Pod")
		}
		return subject(r.node), nil
	}
}

// The roles.
var (
	// AgentServing is that of the agents towards virt-api. Each certificate is for one node.
	AgentServing = Role{
		Name: "virt-handler-serving", Component: "virt-handler", account: handlerAccount,
		purposes: serving, kubernetes: servingInKubernetes,
		subject: ofNode(AgentSubject),
	}
	// AgentMigration is that of the agents towards each other: of the node that a guest leaves as a client, and of the one that
	// it goes to as a server. Each certificate is for one node.
	AgentMigration = Role{
		Name: "virt-handler-migration", Component: "virt-handler", account: handlerAccount,
		purposes:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		kubernetes: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth},
		subject:    ofNode(AgentMigrationSubject),
	}
	// APIClient is that of virt-api towards the agents.
	APIClient = Role{
		Name: "virt-api-client", Component: "virt-api", account: apiAccount,
		purposes: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, kubernetes: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		subject: func(requester) (Subject, error) { return APIClientSubject(), nil },
	}
	// APIServing is that of virt-api towards the API server's aggregation layer.
	APIServing = Role{
		Name: "virt-api-serving", Component: "virt-api", account: apiAccount,
		purposes: serving, kubernetes: servingInKubernetes,
		subject: func(r requester) (Subject, error) { return APIServingSubject(r.namespace), nil },
	}
)

// Roles are all of them.
func Roles() []Role { return []Role{AgentServing, AgentMigration, APIClient, APIServing} }

// RoleOf finds the role of a signer.
func RoleOf(signer string) (Role, bool) {
	roles := Roles()
	at := slices.IndexFunc(roles, func(r Role) bool { return r.Signer() == signer })
	if at < 0 {
		return Role{}, false
	}
	return roles[at], true
}

// Signer is the signer's name in the API of Kubernetes.
func (r Role) Signer() string { return "kubevirt.io/" + r.Name }

// Requester is the user who may ask for certificates of the role in an installation's namespace.
func (r Role) Requester(namespace string) string {
	return serviceaccount.MakeUsername(namespace, r.account)
}

// AuthoritySecret is the Secret with the authority's keys.
func (r Role) AuthoritySecret() string { return "kubevirt-" + r.Name + "-ca" }

// AgentSubject is the agent of a node.
func AgentSubject(node string) Subject {
	return Subject{DNSNames: []string{agentapi.ServerName(node)}}
}

// AgentMigrationSubject is the agent of a node towards other agents.
func AgentMigrationSubject(node string) Subject {
	return Subject{DNSNames: []string{agentapi.MigrationName(node)}}
}

// APIClientSubject is virt-api as a client of agents.
func APIClientSubject() Subject { return Subject{CommonName: agentapi.ClientName} }

// APIServingSubject is virt-api as the API server calls it.
func APIServingSubject(namespace string) Subject {
	return Subject{DNSNames: []string{fmt.Sprintf("%s.%s.svc", agentapi.ServiceName, namespace)}}
}

// usages are what a certificate of the role may be asked for. Without key encipherment, which only RSA has.
func (r Role) usages() []certificatesv1.KeyUsage {
	return append([]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}, r.kubernetes...)
}
