// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// tunnel gives the source's agent a connection to the libvirtd of the target's Pod, on which it can do what a migration needs
// and nothing else.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request, asked request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), tunnelProtocol) {
		return apierrors.NewBadRequest("this is a stream: ask for an upgrade to " + tunnelProtocol)
	}
	if !s.take(asked.migration) {
		return conflict(asked, "the target's libvirtd is in use")
	}
	defer s.giveBack(asked.migration)
	libvirtd, err := s.Tunnel(r.Context(), asked.arrival.Pod)
	if err != nil {
		return err
	}
	defer func() { _ = libvirtd.Close() }()
	peer, err := hijack(w)
	if err != nil {
		return err
	}
	defer func() { _ = peer.Close() }()
	logger := log.FromContext(r.Context()).WithValues("vmi", asked.vmi, "migration", asked.migration)
	if err := bridge(r.Context(), peer, libvirtd); errors.Is(err, libvirtrpc.ErrRefused) {
		logger.Error(err, "The agent of the migration's source was cut off")
	} else {
		logger.V(3).Info("The agent of the migration's source is done with libvirtd", "end", fmt.Sprint(err))
	}
	return nil
}

// take lets one connection to a migration's libvirtd in at a time: a second one has no business there.
func (s *Server) take(migration types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tunnels[migration] {
		return false
	}
	s.tunnels[migration] = true
	return true
}

func (s *Server) giveBack(migration types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tunnels, migration)
}

// hijack takes the connection over and says so to the peer.
func hijack(w http.ResponseWriter) (net.Conn, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take the connection over: %w", err)
	}
	// The server's deadlines were for a request.
	err = conn.SetDeadline(time.Time{})
	if err == nil && buffered.Reader.Buffered() > 0 {
		err = errors.New("the peer did not wait for the answer")
	}
	if err == nil {
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tunnelProtocol+"\r\n\r\n")
	}
	if err != nil {
		_ = conn.Close()
		// Nobody is there any more to be told.
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	return conn, nil
}

var errGone = errors.New("the connection was taken over and cannot be used")

// peerPatience is how long the source's agent may be silent. It shows every ten seconds that it is there.
const peerPatience = 90 * time.Second

// heard lets through what a direction does, and ends the connection of a peer that says nothing any more. libvirtd ends the guest
// that waits for it then, as with any other end of the connection: one that has arrived stays. An agent that is older than this rule
// does not show that it is there, and says nothing while the guest is copied.
func heard(peer net.Conn, patience time.Duration, direction libvirtrpc.Direction) libvirtrpc.Direction {
	alive := false
	return func(program uint32, proc int32, kind uint32) bool {
		alive = alive || libvirtrpc.IsKeepAlive(program)
		if alive {
			// A connection that has ended tells it by itself.
			_ = peer.SetReadDeadline(time.Now().Add(patience))
		}
		return direction(program, proc, kind)
	}
}

// bridge passes messages on until one side ends or says what it may not.
func bridge(ctx context.Context, peer, libvirtd net.Conn) error {
	stop := context.AfterFunc(ctx, func() {
		_ = peer.Close()
		_ = libvirtd.Close()
	})
	defer stop()
	ended := make(chan error, 2)
	go func() {
		ended <- libvirtrpc.Pass(libvirtd, peer, heard(peer, peerPatience, libvirtrpc.MigrationCalls()))
	}()
	go func() { ended <- libvirtrpc.Pass(peer, libvirtd, libvirtrpc.MigrationAnswers) }()
	first := <-ended
	_ = peer.Close()
	_ = libvirtd.Close()
	<-ended //nolint:errcheck // the first end is the reason, and closes both
	return first
}
