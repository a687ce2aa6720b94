// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/vireo-project/vireo/internal/backup"
)

// Exporter is the role of the servers of exports, to which virt-exportproxy and importers connect. Exporters run in the namespaces of users
// and have no access to the API server, so virt-controller issues the certificates itself, each for one export. Roles does not contain this
// role, because it has no signer.
var Exporter = Role{Name: "virt-exporter", Component: "virt-exporter", purposes: serverPurposes, usageNames: serverUsageNames}

// Authorities returns the roles whose CA is in a Secret of its own: all of Roles, and Exporter.
func Authorities() []Role { return append(Roles(), Exporter) }

// Issue creates a key and its certificate for a subject, which expires at a time, or with the CA if that is earlier. Both are PEM.
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
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, RootCAs: pool, ServerName: serverName}, nil
}

// PullClient returns the configuration of one connection of an agent to the server of an export that reads the disks of a guest.
func PullClient(own Provider, trust Trust, serverName string) (*tls.Config, error) {
	config, err := clientOf(own, trust, Exporter, Subject{DNSNames: []string{serverName}})
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{backup.ExporterProtocol}
	return config, nil
}
