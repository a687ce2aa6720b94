// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// Trust is the directory in which the ConfigMap of bundles is mounted. Files are read for each connection, so that a change
// counts from the moment in which the kubelet has made it.
type Trust string

// pool is what is trusted for a role.
func (t Trust) pool(role Role) (*x509.CertPool, error) {
	file := filepath.Join(string(t), role.Name)
	bundle, err := os.ReadFile(file) //nolint:gosec // the path is ours
	if err != nil {
		return nil, fmt.Errorf("the authority of %s is not known yet: %w", role.Signer(), err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return pool, nil
}

// errNoCertificate is what a handshake ends with until there is a certificate.
var errNoCertificate = errors.New("there is no certificate yet: virt-controller has not signed one")

// Holder has a certificate, or nil as long as there is none.
type Holder interface{ Current() *tls.Certificate }

func holding(own Holder) (*tls.Certificate, error) {
	if pair := own.Current(); pair != nil {
		return pair, nil
	}
	return nil, errNoCertificate
}

// AgentServer is the configuration of an agent's server. It shows the agent's certificate and serves virt-api only. As long as
// there is no certificate or nothing to trust, connections are refused.
func AgentServer(own Holder, trust Trust) *tls.Config {
	return serverFor(own, trust, APIClient, onlyClient(APIClientSubject().CommonName))
}

// MigrationServer is the configuration of the server of an agent for other agents. PeerNode tells whose agent a client is.
func MigrationServer(own Holder, trust Trust) *tls.Config {
	return serverFor(own, trust, AgentMigration, func(state tls.ConnectionState) error {
		_, err := PeerNode(state)
		return err
	})
}

// serverFor is the configuration of a server for the clients of a role that are let in.
func serverFor(own Holder, trust Trust, clients Role, letIn func(tls.ConnectionState) error) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"http/1.1"}, // a stream begins with an upgrade, which HTTP/2 does not have
		// A resumed session would be one of somebody who was checked once, with what was trusted then.
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return holding(own) },
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              x509.NewCertPool(),
		VerifyConnection:       letIn,
	}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := trust.pool(clients)
		if err != nil {
			return nil, err
		}
		now := base.Clone()
		now.ClientCAs = pool
		return now, nil
	}
	return base
}

// onlyClient refuses every client but one. Its certificate was verified before.
func onlyClient(name string) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 || state.PeerCertificates[0].Subject.CommonName != name {
			return fmt.Errorf("only %s is served", name)
		}
		return nil
	}
}

// AgentClient is the configuration for one connection of virt-api to the agent of a node: it shows virt-api's certificate and
// takes no other agent's for an answer.
func AgentClient(own Holder, trust Trust, node string) (*tls.Config, error) {
	return clientOf(own, trust, AgentServing, AgentSubject(node))
}

// MigrationClient is the configuration for one connection of an agent to that of another node.
func MigrationClient(own Holder, trust Trust, node string) (*tls.Config, error) {
	return clientOf(own, trust, AgentMigration, AgentMigrationSubject(node))
}

// PeerNode is the node whose agent is at the other end of a connection between agents. The certificate was verified before.
func PeerNode(state tls.ConnectionState) (string, error) {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return "", errors.New("the peer has no certificate that was verified")
	}
	// An agent's certificate is for one name and nothing else.
	leaf := state.PeerCertificates[0]
	if len(leaf.DNSNames) == 1 && leaf.Subject.CommonName == "" {
		if node, ok := agentapi.MigrationNode(leaf.DNSNames[0]); ok {
			return node, nil
		}
	}
	return "", errors.New("the peer's certificate is not that of a node's agent")
}

// clientOf is the configuration for one connection to a server of a role that must be a certain one.
func clientOf(own Holder, trust Trust, servers Role, server Subject) (*tls.Config, error) {
	pool, err := trust.pool(servers)
	if err != nil {
		return nil, err
	}
	if _, err := holding(own); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{"http/1.1"},
		RootCAs:              pool,
		ServerName:           server.DNSNames[0],
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return holding(own) },
	}, nil
}
