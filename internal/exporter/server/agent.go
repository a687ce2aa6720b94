// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// maxAgentConnections limits the open connections on the port for the agent, to which every Pod of the cluster can
	// connect. More than those of the agent, which are not closed for new ones.
	maxAgentConnections = 64
	// handshakeTimeout is how long a handshake on this port may take.
	handshakeTimeout = 10 * time.Second
	// acceptPause is the delay after a connection could not be accepted.
	acceptPause = time.Second
)

// IsPulled reports whether the export is that of a backup, for which the agent has to connect.
func (s *Server) IsPulled() bool { return s.pull != nil }

// Report returns what clients have got of a backup.
func (s *Server) Report() content.Report { return s.pull.report() }

// ServeAgent accepts the connections of the agent of the guest's node until the context ends, and closes the listener.
func (s *Server) ServeAgent(ctx context.Context, listener net.Listener, serving func() (*tls.Certificate, error)) {
	config := AgentTLS(serving, s.servedBackup)
	listener = limits.Connections(listener, maxAgentConnections)
	stop := context.AfterFunc(ctx, func() {
		closeAll(listener)
		s.pull.sessions.close()
	})
	defer stop()
	for ctx.Err() == nil {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			go s.welcome(ctx, tls.Server(conn, config))
		case !errors.Is(err, net.ErrClosed):
			s.options.Log.Error(err, "Cannot accept a connection of an agent")
			time.Sleep(acceptPause)
		}
	}
}

// welcome adds a connection to the sessions, if its client is the agent.
func (s *Server) welcome(ctx context.Context, conn *tls.Conn) {
	handshake, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(handshake); err != nil {
		s.options.Log.V(3).Info("A connection was refused", "error", err.Error())
		closeAll(conn)
		return
	}
	limits.Protect(limits.ConnContext(ctx, conn)) // until it is closed
	s.pull.sessions.add(conn)
}

// servedBackup returns the backup that is exported now. The authorities of agents may change; the volumes do not.
func (s *Server) servedBackup() (*content.Backup, error) {
	exported, err := s.options.Content()
	if err == nil && exported.Backup == nil {
		err = errors.New("the export has no backup any more")
	}
	if err != nil {
		return nil, err
	}
	return exported.Backup, nil
}

// AgentTLS returns the configuration of the server for the agent. serving returns the exporter's certificate, and of
// returns the backup, which names the agent and the authorities by which it is verified.
func AgentTLS(serving func() (*tls.Certificate, error), of func() (*content.Backup, error)) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{content.AgentProtocol}, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving() },
		ClientAuth:     tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(),
	}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		backup, err := of()
		if err != nil {
			return nil, err
		}
		config := base.Clone()
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM([]byte(backup.CA)) {
			return nil, errors.New("there is no authority for the certificates of agents yet")
		}
		config.VerifyConnection = func(state tls.ConnectionState) error { return verifyAgent(state, backup.Client) }
		return config, nil
	}
	return base
}

// verifyAgent returns an error unless the client has a certificate for exactly this name, and has negotiated the
// protocol.
func verifyAgent(state tls.ConnectionState, name string) error {
	switch {
	case state.NegotiatedProtocol != content.AgentProtocol:
		return fmt.Errorf("the client has not negotiated %s", content.AgentProtocol)
	case len(state.VerifiedChains) == 0 || !slices.Equal(state.PeerCertificates[0].DNSNames, []string{name}):
		return fmt.Errorf("only %s is served", name)
	}
	return nil
}
