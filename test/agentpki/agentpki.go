// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agentpki provides the certificates with which the agents of a test authenticate each other.
package agentpki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"

	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/pki"
)

// TB is the part of a test that a World uses.
type TB interface {
	pki.TB
	TempDir() string
}

// World is a CA and the directory with its certificate.
type World struct {
	authority *pki.Authority
	trust     certificate.Trust
}

// New returns a World with a new CA.
func New(t TB) *World {
	t.Helper()
	w := &World{authority: pki.New(t), trust: certificate.Trust(t.TempDir())}
	if err := os.WriteFile(filepath.Join(string(w.trust), certificate.AgentMigration.Name), w.authority.PEM(),
		0o600); err != nil {
		t.Fatalf("write the authority: %v", err)
	}
	return w
}

// static is a certificate.Provider of a fixed certificate.
type static struct{ tls.Certificate }

// Current implements certificate.Provider.
func (s static) Current() *tls.Certificate { return &s.Certificate }

func (w *World) issue(node string) static {
	return static{w.authority.IssueHost(agentapi.MigrationName(node), x509.ExtKeyUsageServerAuth,
		x509.ExtKeyUsageClientAuth)}
}

// Server returns the configuration of the server of a node's agent.
func (w *World) Server(node string) *tls.Config {
	return certificate.MigrationServer(w.issue(node), w.trust)
}

// Client returns a function that returns the configuration of a connection of a node's agent to that of another node.
func (w *World) Client(node string) func(string) (*tls.Config, error) {
	own := w.issue(node)
	return func(to string) (*tls.Config, error) { return certificate.MigrationClient(own, w.trust, to) }
}

// Files returns the directory with the CA certificate, and a new certificate and key of a node's agent as PEM, for an
// agent in a process of its own.
func (w *World) Files(t TB, node string) (trust string, crt, key []byte) {
	t.Helper()
	own := w.issue(node)
	der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatalf("write a key: %v", err)
	}
	return string(w.trust), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
