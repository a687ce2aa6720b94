// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// tunnel connects the source's agent to the libvirtd of the target's Pod. Only the calls that a migration needs are
// allowed.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request, req request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), tunnelProtocol) {
		return apierrors.NewBadRequest("this is a stream: request it with an upgrade to " + tunnelProtocol)
	}
	if !s.acquireTunnel(req.migration) {
		return conflict(req, "the target's libvirtd is in use")
	}
	free := sync.OnceFunc(func() { s.freeTunnel(req.migration) })
	defer free()
	libvirtd, err := s.Tunnel(r.Context(), req.target.Pod)
	if err != nil {
		return err
	}
	defer func() { _ = libvirtd.Close() }()
	peer, err := hijack(w)
	if err != nil {
		return err
	}
	defer func() { _ = peer.Close() }()
	// This comes before the peer's connection is closed, so that a source which sees the end can connect again at once.
	defer free()
	logger := log.FromContext(r.Context()).WithValues("vmi", req.vmi, "migration", req.migration)
	if err := bridge(r.Context(), peer, libvirtd); errors.Is(err, libvirtwire.ErrRefused) {
		logger.Error(err, "Closed the tunnel of a migration's source for a message that is not allowed")
	} else {
		logger.V(3).Info("The tunnel of a migration's source was closed", "reason", fmt.Sprint(err))
	}
	return nil
}

// acquireTunnel allows one connection to a migration's libvirtd at a time. A source needs only one.
func (s *Server) acquireTunnel(migration types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tunnels[migration] {
		return false
	}
	s.tunnels[migration] = true
	return true
}

func (s *Server) freeTunnel(migration types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tunnels, migration)
}

// hijack takes the connection over from the HTTP server and confirms the upgrade to the client.
func hijack(w http.ResponseWriter) (net.Conn, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take the connection over: %w", err)
	}
	// The server's deadlines were for a request.
	err = conn.SetDeadline(time.Time{})
	if err == nil && buffered.Reader.Buffered() > 0 {
		err = errors.New("the peer did not wait for the response")
	}
	if err == nil {
		_, err = io.WriteString(conn,
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tunnelProtocol+"\r\n\r\n")
	}
	if err != nil {
		_ = conn.Close()
		// No response can be sent any more.
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	return conn, nil
}

var errGone = errors.New("the connection was taken over and cannot be used")

// peerTimeout is how long the source's agent may be silent. It sends a keep-alive every ten seconds.
const peerTimeout = 90 * time.Second

// withDeadline closes the connection of a peer that has sent keep-alives and is then silent for the timeout. libvirtd
// ends an incomplete guest then, as whenever the connection ends. Older agents send no keep-alives, and nothing during
// the transfer: they have no timeout.
func withDeadline(peer net.Conn, timeout time.Duration, direction libvirtwire.Direction) libvirtwire.Direction {
	sendsKeepAlives := false
	return func(program uint32, proc int32, kind uint32) bool {
		sendsKeepAlives = sendsKeepAlives || libvirtwire.IsKeepAlive(program)
		if sendsKeepAlives {
			// An error means that the connection has ended, which Read returns.
			_ = peer.SetReadDeadline(time.Now().Add(timeout))
		}
		return direction(program, proc, kind)
	}
}

// bridge forwards messages until one side closes its connection or sends a message that is not allowed. Nothing can be
// read from either connection or written to it afterwards.
func bridge(ctx context.Context, peer, libvirtd net.Conn) error {
	stop := context.AfterFunc(ctx, func() {
		_ = peer.Close()
		_ = libvirtd.Close()
	})
	defer stop()
	results := make(chan error, 2)
	go func() {
		results <- libvirtwire.Pass(libvirtd, peer, withDeadline(peer, peerTimeout, libvirtwire.MigrationCalls()))
	}()
	go func() { results <- libvirtwire.Pass(peer, libvirtd, libvirtwire.MigrationResponses) }()
	first := <-results
	_ = libvirtd.Close()
	// The deadline ends what still reads or writes. The caller closes the connection.
	_ = peer.SetDeadline(time.Unix(1, 0))
	<-results //nolint:errcheck // the first one is the reason, and ends both directions
	return first
}
