// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"crypto/tls"
	"crypto/x509"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/pki"
)

// Authority is the CA of agents and of virt-api.
type Authority struct{ ca *pki.Authority }

// NewAuthority returns a new Authority.
func NewAuthority(t T) *Authority {
	t.Helper()
	return &Authority{ca: pki.New(t)}
}

// Client returns a function that returns the configuration of virt-api's connection to the agent of a node.
func (a *Authority) Client(t T) func(node string) (*tls.Config, error) {
	t.Helper()
	own := a.ca.Issue(agentapi.ClientName, x509.ExtKeyUsageClientAuth)
	return func(node string) (*tls.Config, error) {
		return &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: a.ca.Pool(), Certificates: []tls.Certificate{own},
			ServerName: agentapi.ServerName(node),
		}, nil
	}
}

func (a *Authority) server(name string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.ca.Pool(),
		Certificates: []tls.Certificate{a.ca.Issue(name, x509.ExtKeyUsageServerAuth)},
	}
}
