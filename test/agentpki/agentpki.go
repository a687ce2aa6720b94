// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agentpki has the certificates with which the agents of a test know each other.
package agentpki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"

	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/test/pki"
)

// TB is what World needs of a test.
type TB interface {
	pki.TB
	TempDir() string
}

// World is an authority and where agents find it.
type World struct {
	authority *pki.Authority
	trust     certificate.Trust
}

// New makes a World.
func New(t TB) *World {
	t.Helper()
	w := &World{authority: pki.New(t), trust: certificate.Trust(t.TempDir())}
	if err := os.WriteFile(filepath.Join(string(w.trust), certificate.AgentMigration.Name), w.authority.PEM(), 0o600); err != nil {
		t.Fatalf("write the authority: %v", err)
	}
	return w
}

// held is a certificate that is there.
type held struct{ tls.Certificate }

// Current is the certificate.
func (h held) Current() *tls.Certificate { return &h.Certificate }

func (w *World) of(node string) held {
	return held{w.authority.IssueHost(agentapi.MigrationName(node), x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)}
}

// Server is the configuration of the server of a node's agent.
func (w *World) Server(node string) *tls.Config {
	return certificate.MigrationServer(w.of(node), w.trust)
}

// Client is that of the connections of a node's agent to others.
func (w *World) Client(node string) func(string) (*tls.Config, error) {
	own := w.of(node)
	return func(to string) (*tls.Config, error) { return certificate.MigrationClient(own, w.trust, to) }
}

// Files are what the agent of a node has as files, in a process of its own: the directory of authorities, its certificate and its
// key as PEM.
func (w *World) Files(t TB, node string) (trust string, crt, key []byte) {
	t.Helper()
	own := w.of(node)
	der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatalf("write a key: %v", err)
	}
	return string(w.trust), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
