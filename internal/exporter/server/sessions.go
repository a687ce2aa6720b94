// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/wire/nbd"
)

const (
	// maxSessions is how many sessions there are at the same time, and maxIdle how many connections without one are
	// kept. The agent keeps fewer.
	maxSessions = 8
	maxIdle     = 8
	// sessionWait is how long a request waits for a session: the agent may be restarting. virt-exportproxy waits a
	// minute for the response.
	sessionWait = 45 * time.Second
	// nbdTimeout is how long QEMU may take for a request. Its storage may be slow.
	nbdTimeout = 30 * time.Second
	// attempts is how often a request is sent: a connection may have been closed while it was not used.
	attempts = 3
)

// sessions are the connections of the agent, and the NBD sessions on them. Each connection is for one session. Those
// that are not used are kept, because clients send a request for each extent.
type sessions struct {
	log logr.Logger
	// contexts are the metadata contexts of each session.
	contexts []string
	// wait is sessionWait.
	wait time.Duration
	// slots limits how many sessions are used at the same time.
	slots chan struct{}

	mu sync.Mutex
	// idle are the connections without a session, and kept the sessions that are not used, the oldest first.
	idle []net.Conn
	kept []session
	// arrived is closed and replaced when a connection is added.
	arrived chan struct{}
	// connected is set once there was a connection.
	connected, closed bool
}

// session is a session for one volume.
type session struct {
	*nbd.Client
	volume string
}

func newSessions(log logr.Logger, contexts []string) *sessions {
	return &sessions{log: log, contexts: contexts, wait: sessionWait, slots: make(chan struct{}, maxSessions),
		arrived: make(chan struct{})}
}

// add adds a connection of the agent. If there are too many, the oldest is closed, which may be dead.
func (s *sessions) add(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return
	}
	s.connected = true
	s.idle = append(s.idle, conn)
	if len(s.idle) > maxIdle {
		_ = s.idle[0].Close()
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	close(s.arrived)
	s.arrived = make(chan struct{})
}

// close closes all connections that are not used.
func (s *sessions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, conn := range s.idle {
		_ = conn.Close()
	}
	for _, kept := range s.kept {
		_ = kept.Close()
	}
	s.idle, s.kept = nil, nil
}

// hasConnected reports whether the agent has connected.
func (s *sessions) hasConnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected
}

// with calls a function with a session for a volume. The function is called again with another session if the
// connection breaks.
func (s *sessions) with(ctx context.Context, volume string, use func(*nbd.Client) error) error {
	late := time.Now().Add(s.wait)
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(late)):
		return &problem{http.StatusServiceUnavailable, "too many requests at the same time: try again later"}
	}
	var err error
	for range attempts {
		var used session
		if used, err = s.get(ctx, volume, late); err != nil {
			return err
		}
		err = use(used.Client)
		var reported *nbd.ServerError
		if err == nil || errors.As(err, &reported) {
			s.put(used)
			return err
		}
		_ = used.Close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.drop(volume)
		s.log.Info("A connection to the guest's disk was lost", "volume", volume, "error", err.Error())
	}
	return err
}

// drop closes the sessions for a volume that are not used. What breaks one, as the end of the agent's process, has most
// likely broken them all.
func (s *sessions) drop(volume string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = slices.DeleteFunc(s.kept, func(kept session) bool {
		if kept.volume == volume {
			_ = kept.Close()
		}
		return kept.volume == volume
	})
}

// get returns a session that is not used, or begins one.
func (s *sessions) get(ctx context.Context, volume string, late time.Time) (session, error) {
	if kept, found := s.reuse(volume); found {
		return kept, nil
	}
	for range maxIdle + attempts { // all of them may be dead
		conn, err := s.take(ctx, late)
		if err != nil {
			return session{}, err
		}
		opened, err := nbd.Open(conn, nbd.Options{Export: volume, Contexts: s.contexts, Timeout: nbdTimeout})
		if err == nil {
			return session{opened, volume}, nil
		}
		_ = conn.Close()
		s.log.Info("Cannot open the guest's disk", "volume", volume, "error", err.Error())
		if errors.Is(err, nbd.ErrNoExport) {
			return session{}, &problem{http.StatusServiceUnavailable,
				"the guest does not serve this volume: the backup may have ended"}
		}
	}
	return session{}, errNotConnected
}

// reuse returns a session for a volume that is not used. If there is none, it makes room for another.
func (s *sessions) reuse(volume string) (session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.kept, func(kept session) bool { return kept.volume == volume })
	if at >= 0 {
		kept := s.kept[at]
		s.kept = slices.Delete(s.kept, at, at+1)
		return kept, true
	}
	// The caller has a slot already.
	if len(s.kept)+len(s.slots) > maxSessions {
		_ = s.kept[0].Close()
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	return session{}, false
}

// errNotConnected is the error of requests while there is no connection of the agent.
var errNotConnected = &problem{http.StatusServiceUnavailable,
	"the agent of the guest's node is not connected: try again later"}

// take returns the connection that was added last, or waits for one.
func (s *sessions) take(ctx context.Context, late time.Time) (net.Conn, error) {
	waited := time.After(time.Until(late))
	for {
		s.mu.Lock()
		if last := len(s.idle) - 1; last >= 0 {
			conn := s.idle[last]
			s.idle = s.idle[:last]
			s.mu.Unlock()
			return conn, nil
		}
		arrived := s.arrived
		s.mu.Unlock()
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-waited:
			return nil, errNotConnected
		}
	}
}

// put keeps a session for later requests.
func (s *sessions) put(used session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = used.Close()
		return
	}
	s.kept = append(s.kept, used)
}
