// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Trust is the directory where the ConfigMap BundleName is mounted. Its files are read for each connection, so that a
// change takes effect as soon as the kubelet has updated them.
type Trust string

// Bundle returns the CA certificates of a role, as PEM.
func (t Trust) Bundle(role Role) ([]byte, error) {
	bundle, err := os.ReadFile(filepath.Join(string(t), role.Name))
	if err != nil {
		return nil, fmt.Errorf("the authority of %s is not known yet: %w", role.Signer(), err)
	}
	return bundle, nil
}

// pool returns the CA certificates of a role.
func (t Trust) pool(role Role) (*x509.CertPool, error) {
	bundle, err := t.Bundle(role)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(string(t), role.Name))
	}
	return pool, nil
}

// errNoCertificate is the error of a handshake before there is a certificate.
var errNoCertificate = errors.New("there is no certificate yet: virt-controller has not signed one")

// Provider provides a certificate, or nil if there is none yet.
type Provider interface{ Current() *tls.Certificate }

func current(own Provider) (*tls.Certificate, error) {
	if pair := own.Current(); pair != nil {
		return pair, nil
	}
	return nil, errNoCertificate
}

// AgentServer returns the configuration of an agent's server, which accepts only virt-api. Handshakes fail while there
// is no certificate of the agent or no CA certificate to verify virt-api's.
func AgentServer(own Provider, trust Trust) *tls.Config {
	return serverFor(own, trust, APIClient, onlyClient(APIClientSubject().CommonName))
}

// MigrationServer returns the configuration of an agent's server for other agents. PeerNode returns the node of a
// client.
func MigrationServer(own Provider, trust Trust) *tls.Config {
	return serverFor(own, trust, AgentMigration, func(state tls.ConnectionState) error {
		_, err := PeerNode(state)
		return err
	})
}

// serverFor returns the configuration of a server for clients of a role. verify can reject a client whose certificate
// is valid.
func serverFor(own Provider, trust Trust, clients Role, verify func(tls.ConnectionState) error) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"http/1.1"}, // streams need an upgrade, which HTTP/2 does not have
		// A resumed session would not be verified against the current CA certificates.
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current(own) },
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              x509.NewCertPool(),
		VerifyConnection:       verify,
	}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := trust.pool(clients)
		if err != nil {
			return nil, err
		}
		config := base.Clone()
		config.ClientCAs = pool
		return config, nil
	}
	return base
}

// onlyClient returns a function that rejects clients with another common name. It expects verified certificates.
func onlyClient(name string) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 || state.PeerCertificates[0].Subject.CommonName != name {
			return fmt.Errorf("only %s is served", name)
		}
		return nil
	}
}

// VerifyAPI returns an error unless the client of a connection has virt-api's client certificate, signed by an
// authority of a bundle. It is for servers that also have other clients: their handshakes request a certificate, but do
// not verify it.
func VerifyAPI(state *tls.ConnectionState, bundle []byte, now time.Time) error {
	if state == nil || len(state.PeerCertificates) == 0 {
		return errors.New("the client has no certificate")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := state.PeerCertificates[0].Verify(
		x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: APIClient.purposes})
	if err != nil {
		return fmt.Errorf("the client's certificate: %w", err)
	}
	return onlyClient(APIClientSubject().CommonName)(*state)
}

// APIPeer returns the configuration of one connection of virt-api to another of its Pods.
func APIPeer(own Provider, trust Trust, namespace string) (*tls.Config, error) {
	return clientOf(own, trust, APIServing, APIServingSubject(namespace))
}

// ControllerClient returns the configuration of one connection of virt-api to virt-controller.
func ControllerClient(own Provider, trust Trust, namespace string) (*tls.Config, error) {
	return clientOf(own, trust, ControllerServing, ControllerServingSubject(namespace))
}

// AgentClient returns the configuration of one connection of virt-api to the agent of a node. It rejects the agents of
// other nodes.
func AgentClient(own Provider, trust Trust, node string) (*tls.Config, error) {
	return clientOf(own, trust, AgentServing, AgentSubject(node))
}

// MigrationClient returns the configuration of one connection of an agent to the agent of another node.
func MigrationClient(own Provider, trust Trust, node string) (*tls.Config, error) {
	return clientOf(own, trust, AgentMigration, AgentMigrationSubject(node))
}

// PeerNode returns the node of the peer in a connection between agents. The peer's certificate has been verified.
func PeerNode(state tls.ConnectionState) (string, error) {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return "", errors.New("the peer has no certificate that was verified")
	}
	// An agent's certificate has exactly one name.
	leaf := state.PeerCertificates[0]
	if len(leaf.DNSNames) == 1 && leaf.Subject.CommonName == "" {
		if node, ok := agentapi.MigrationNode(leaf.DNSNames[0]); ok {
			return node, nil
		}
	}
	return "", errors.New("the peer's certificate is not that of a node's agent")
}

// clientOf returns the configuration of one connection to the server of a role with the given subject.
func clientOf(own Provider, trust Trust, servers Role, server Subject) (*tls.Config, error) {
	pool, err := trust.pool(servers)
	if err != nil {
		return nil, err
	}
	if _, err := current(own); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{"http/1.1"},
		RootCAs:              pool,
		ServerName:           server.DNSNames[0],
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return current(own) },
	}, nil
}

// Exporter is the role of the servers of exports, to which virt-exportproxy and importers connect. Exporters run in the
// namespaces of users and have no access to the API server, so virt-controller issues the certificates itself, each for
// one export. Roles does not contain this role, because it has no signer.
var Exporter = Role{Name: "virt-exporter", Component: "virt-exporter", purposes: serverPurposes,
	usageNames: serverUsageNames}

// Authorities returns the roles whose CA is in a Secret of its own: all of Roles, and Exporter.
func Authorities() []Role { return append(Roles(), Exporter) }

// Issue creates a key and its certificate for a subject, which expires at a time, or with the CA if that is earlier.
// Both are PEM.
func (a Authority) Issue(subject Subject, now, end time.Time) (crt, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	crt, err = a.Sign(&x509.CertificateRequest{DNSNames: subject.DNSNames, PublicKey: private.Public()}, now, end.Sub(now))
	if err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot write a key: %w", err)
	}
	return crt, key, nil
}

// ExporterClient returns the configuration of one connection of virt-exportproxy to the server of an export.
func ExporterClient(trust Trust, serverName string) (*tls.Config, error) {
	pool, err := trust.pool(Exporter)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, RootCAs: pool,
		ServerName: serverName}, nil
}

// PullClient returns the configuration of one connection of an agent to the server of an export that reads the disks of
// a guest.
func PullClient(own Provider, trust Trust, serverName string) (*tls.Config, error) {
	config, err := clientOf(own, trust, Exporter, Subject{DNSNames: []string{serverName}})
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{backup.ExporterProtocol}
	return config, nil
}
