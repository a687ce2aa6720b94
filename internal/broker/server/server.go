// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// The log is limited, so that a client cannot fill the node's disk.
const (
	// logRate and logBurst are the limit for the lines in a second.
	logRate  = 50
	logBurst = 1000
	// maxLogged is the limit for a text in a line, in bytes.
	maxLogged = 1024
)

// idleAfter is how long no request may have ended until memory is given back. Requests come in bursts, as guests start.
const idleAfter = 2 * time.Second

// minPause and maxPause are the first and the longest delay after a connection could not be accepted.
const minPause, maxPause = 5 * time.Millisecond, time.Second

// Options are the settings of a Server.
type Options struct {
	// Program is the program that serves.
	Program brokerapi.Program
	// Verbs are its verbs. Those of all programs are added.
	Verbs Verbs
	// ClientUID is the user whose requests are accepted. The program's own user, which all programs run as, may request
	// few verbs.
	ClientUID uint32
	// Log is the log.
	Log logr.Logger
}

// Server serves the verbs.
type Server struct {
	Options
	// pings are requests that do nothing, and waits those that wait for an event until the client ends them.
	pings, waits *Limiter
	// large has an element for each large request, from when it is received until it has ended.
	large chan struct{}
	// decoding is held while arguments are decoded: before they are rejected, they may take a hundred times the memory
	// of their text.
	decoding sync.Mutex
	// lines limits the lines of the log.
	lines *rate.Limiter
	// idle gives unused memory back to the node after requests.
	idle *time.Timer
}

// New returns a Server.
func New(o Options) *Server {
	s := &Server{
		Options: o, large: make(chan struct{}, largeRequests),
		pings: NewLimiter(8, 256, "too many requests are in flight: retry"),
		waits: NewLimiter(4, 0, "too many requests wait for events of this Pod"),
		lines: rate.NewLimiter(logRate, logBurst),
		idle:  time.AfterFunc(idleAfter, debug.FreeOSMemory),
	}
	s.Verbs[brokerapi.Ping], s.Verbs[brokerapi.WatchProgram] = With(s.ping), With(s.watchProgram)
	return s
}

// Close releases the resources of the server.
func (s *Server) Close() { s.idle.Stop() }

// Listen creates a program's socket and gives it to the client's group; a member of the group needs no capability for
// that. It replaces the socket of an earlier process atomically.
func Listen(path string, clientGID int) (*net.UnixListener, error) {
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove a socket that was not finished: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: next})
	if err != nil {
		return nil, fmt.Errorf("create the socket: %w", err)
	}
	// The name may be that of a successor when this process ends.
	listener.SetUnlinkOnClose(false)
	if err := errors.Join(os.Lchown(next, -1, clientGID), os.Chmod(next, 0o660), os.Rename(next, path)); err != nil { //nolint:gosec // the client's group writes
		return nil, errors.Join(fmt.Errorf("create the socket %s: %w", path, err), listener.Close())
	}
	return listener, nil
}

// Serve serves a listener until the context is done, and closes it.
func (s *Server) Serve(ctx context.Context, listener *net.UnixListener) error {
	var requests errgroup.Group
	requests.SetLimit(maxConnections)
	defer func() { _ = requests.Wait() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for pause := time.Duration(0); ; {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			if conn != nil {
				_ = conn.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept a connection: %w", err)
		}
		if err != nil { // such as too many open files: that of others may end
			pause = min(max(2*pause, minPause), maxPause)
			s.log("A connection cannot be accepted", "error", err.Error(), "retryAfter", pause.String())
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		served := requests.TryGo(func() error {
			defer func() { _ = conn.Close() }()
			s.serve(ctx, conn)
			return nil
		})
		if !served {
			s.log("Too many connections, one was closed")
			_ = conn.Close()
		}
	}
}

// log writes a line, unless there are too many. A client determines the texts among the values, which are cut.
func (s *Server) log(message string, values ...any) {
	if !s.lines.Allow() {
		return
	}
	for i := range values {
		if text, ok := values[i].(string); ok {
			values[i] = text[:min(len(text), maxLogged)]
		}
	}
	s.Log.Info(message, values...)
}

// serve serves the one request of a connection. It reads without room for descriptors, so that the kernel closes those
// that a client sends.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	isProgram, err := s.checkClient(conn)
	if err != nil {
		s.log("A connection was refused", "error", err.Error())
		return
	}
	if err := conn.SetDeadline(time.Now().Add(brokerapi.RequestTimeout)); err != nil {
		return
	}
	request, release, err := s.receive(conn)
	defer release()
	if errors.Is(err, io.EOF) {
		return
	}
	if err == nil && isProgram && !request.Verb.OfPrograms() {
		err = brokerapi.Refused("%.64q is requested by user %d only", request.Verb, s.ClientUID)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	start := time.Now()
	if err == nil {
		err = s.respond(ctx, conn, request)
	} else {
		err = errors.Join(err, s.send(conn, Output{}, err))
		request = &brokerapi.Request{}
	}
	values := []any{"verb", string(request.Verb), "pod", request.Pod, "took", time.Since(start).String()}
	switch {
	case err != nil:
		s.log("A request failed", append(values, "error", err.Error())...)
	case request.Verb == brokerapi.Ping: // the kubelet's probes
		return
	default:
		s.log("Served a request", values...)
	}
	s.idle.Reset(idleAfter)
}

// receive receives a request. There are few large ones at a time, whose arguments take memory also while they wait for
// their turn. The caller releases each.
func (s *Server) receive(conn *net.UnixConn) (request *brokerapi.Request, release func(), err error) {
	release = func() {}
	request, err = brokerapi.ReadRequest(conn, func(length uint32) error {
		if length <= brokerapi.SmallRequest {
			return nil
		}
		select {
		case s.large <- struct{}{}:
			release = func() { <-s.large }
			return conn.SetReadDeadline(time.Now().Add(brokerapi.RequestTimeout))
		case <-time.After(brokerapi.VerbTimeout):
			return &brokerapi.Error{Code: brokerapi.CodeBusy, Message: "too many large requests are in flight: retry"}
		}
	})
	return request, release, err
}

// checkClient returns an error unless the kernel says that the peer is virt-handler's user, or the program's own. It
// reports whether the peer is one of the programs.
func (s *Server) checkClient(conn *net.UnixConn) (isProgram bool, err error) {
	peer, err := pods.PeerCredentials(conn)
	if err != nil {
		return false, err
	}
	isProgram = peer.Uid != s.ClientUID
	if isProgram && int(peer.Uid) != os.Geteuid() {
		return false, fmt.Errorf("the client is user %d, not %d", peer.Uid, s.ClientUID)
	}
	return isProgram, nil
}

// respond does what a request wants until the client closes the connection, and sends the responses.
func (s *Server) respond(ctx context.Context, conn *net.UnixConn, request *brokerapi.Request) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		// A client sends nothing after its request. The read ends with the connection.
		_, _ = conn.Read(make([]byte, 1))
		cancel()
	}()
	s.decoding.Lock()
	task, err := s.Task(request)
	s.decoding.Unlock()
	if err != nil {
		return errors.Join(err, s.send(conn, Output{}, err))
	}
	if task.Watch != nil {
		return s.watch(ctx, conn, request.Pod, task)
	}
	got, err := s.run(ctx, request.Pod, task)
	return errors.Join(err, s.send(conn, got, err))
}

// watch sends a response now and after each change.
func (s *Server) watch(ctx context.Context, conn *net.UnixConn, pod string, t Task) error {
	release, err := s.waits.acquire(ctx, pod)
	if err != nil {
		return errors.Join(err, s.send(conn, Output{}, err))
	}
	defer release()
	for {
		got, changed := t.Watch()
		if err := s.send(conn, got, nil); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// run does a task, after what it waits for.
func (s *Server) run(ctx context.Context, pod string, t Task) (Output, error) {
	if t.Wait != nil {
		release, err := s.waits.acquire(ctx, pod)
		if err != nil {
			return Output{}, err
		}
		err = t.Wait(ctx)
		release()
		if err != nil {
			return Output{}, err
		}
	}
	return t.Do(ctx, pod)
}

// Do does a task that waits for nothing. It returns when the task has ended or its time is over. The task counts as a
// request in flight until it has ended and its result is closed.
func (t Task) Do(ctx context.Context, pod string) (Output, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerapi.VerbTimeout)
	defer cancel()
	release, err := t.Limit.acquire(ctx, pod)
	if err != nil {
		return Output{}, err
	}
	type outcome struct {
		output Output
		err    error
	}
	done := make(chan outcome)
	go func() {
		got, err := t.Run(ctx)
		got.releases = append(got.releases, release)
		select {
		case done <- outcome{got, err}:
		case <-ctx.Done():
			got.Close()
		}
	}()
	select {
	case got := <-done:
		return got.output, got.err
	case <-ctx.Done():
		return Output{}, &brokerapi.Error{Code: brokerapi.CodeTimeout, Message: "the node did not respond in time"}
	}
}

// send sends a response and closes its descriptor.
func (s *Server) send(conn *net.UnixConn, got Output, err error) error {
	defer got.Close()
	response := &brokerapi.Response{}
	if err != nil {
		response.Error = brokerapi.FromError(err)
	} else if got.Result != nil {
		if response.Result, err = json.Marshal(got.Result); err != nil {
			return err
		}
	}
	if err := conn.SetWriteDeadline(time.Now().Add(brokerapi.RequestTimeout)); err != nil {
		return err
	}
	if err := brokerapi.WriteResponse(conn, response, got.File); err != nil {
		return fmt.Errorf("send the response: %w", err)
	}
	return nil
}
