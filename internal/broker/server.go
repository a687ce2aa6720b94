// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

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
	"github.com/vireo-project/vireo/internal/brokerapi"
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

// Devices are the node's devices for guests.
type Devices interface {
	// Usable reports whether the devices that every guest needs are available, whether KVM is, and whether that is known.
	Usable() (usable, kvm, known bool)
	// Changed returns a channel that is closed when the result of Usable may have changed.
	Changed() <-chan struct{}
}

// Options are the settings of a Server.
type Options struct {
	// PodsDir is the kubelet's directory of Pods.
	PodsDir string
	// PodLogsDir is the kubelet's directory with the logs of Pods.
	PodLogsDir string
	// PodResourcesDir is the kubelet's directory with the socket of its pod resources API.
	PodResourcesDir string
	// DevDir is the path at which the node's /dev is mounted.
	DevDir string
	// PublishedDevices is the directory with the block devices of CSI drivers.
	PublishedDevices string
	// Devices are the node's devices.
	Devices Devices
	// ClientUID is the user whose requests are accepted, beside the broker's own.
	ClientUID uint32
	// CheckPeer replaces the check of the process behind a Pod's socket, in tests.
	CheckPeer pods.CheckPeer
	// Log is the log.
	Log logr.Logger
}

// Server serves the verbs.
type Server struct {
	Options
	pods *pods.Pods
	// quick are requests that do not depend on a Pod's storage, volumes those with a large response, network those that change a Pod's
	// network, hotplug those that change its hotplugged volumes, and waits those that wait for an event until the client ends them.
	quick, volumes, storage, network, hotplug, waits *limiter
	// large has an element for each large request that is being received.
	large chan struct{}
	// rules is held while device rules are read and changed, which is short.
	rules sync.Mutex
	// lines limits the lines of the log.
	lines *rate.Limiter
	// idle gives unused memory back to the node after requests.
	idle *time.Timer
}

// New returns a Server.
func New(o Options) *Server {
	volumes := newLimiter(2, 256, "too many volumes are being read: retry")
	volumes.inAll, volumes.reserved = largeInAll, 0
	return &Server{
		Options: o, pods: pods.New(o.PodsDir, o.CheckPeer), volumes: volumes, large: make(chan struct{}, largeRequests),
		quick: newLimiter(8, 256, "too many requests about this Pod are in flight: retry"),
		// The kernel does not interrupt accesses to storage, and each blocks a thread: with a claim on a server that is gone, each
		// reconciliation would block another one.
		storage: newLimiter(4, 0, "the storage of the launcher Pod does not respond"),
		network: newLimiter(1, 16, "the network of the launcher Pod is being changed: retry"),
		hotplug: newLimiter(1, 128, "volumes of the launcher Pod are being changed: retry"),
		waits:   newLimiter(4, 0, "too many requests wait for events of this Pod"),
		lines:   rate.NewLimiter(logRate, logBurst),
		idle:    time.AfterFunc(idleAfter, debug.FreeOSMemory),
	}
}

// Close releases the resources of the server.
func (s *Server) Close() {
	s.idle.Stop()
	s.pods.Close()
}

// Listen creates the broker's socket for a client's user. It replaces the socket of an earlier process without a moment in which there is
// none.
func Listen(path string, clientUID int) (*net.UnixListener, error) {
	next := filepath.Join(filepath.Dir(path), ".next")
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove a socket that was not finished: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: next})
	if err != nil {
		return nil, fmt.Errorf("create the socket: %w", err)
	}
	// The name may be that of a successor when this process ends.
	listener.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(next, 0o600), os.Lchown(next, clientUID, -1), os.Rename(next, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("create the socket %s: %w", path, err), listener.Close())
	}
	return listener, nil
}

// Serve serves a listener until the context is done, and closes it.
func (s *Server) Serve(ctx context.Context, listener *net.UnixListener) error {
	var requests errgroup.Group
	requests.SetLimit(maxConnections + 1)
	defer func() { _ = requests.Wait() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	requests.Go(func() error { s.sweep(ctx); return nil })
	for {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			if conn != nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a connection: %w", err)
		}
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

// serve serves the one request of a connection. It reads without room for descriptors, so that the kernel closes those that a client
// sends.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	if err := s.checkClient(conn); err != nil {
		s.log("A connection was refused", "error", err.Error())
		return
	}
	if err := conn.SetDeadline(time.Now().Add(brokerapi.RequestTimeout)); err != nil {
		return
	}
	request, err := s.receive(conn)
	if errors.Is(err, io.EOF) {
		return
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	start := time.Now()
	if err == nil {
		err = s.respond(ctx, conn, request)
	} else {
		err = errors.Join(err, s.send(conn, answer{}, err))
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

// receive receives a request. Of the large ones, it receives few at a time.
func (s *Server) receive(conn *net.UnixConn) (*brokerapi.Request, error) {
	release := func() {}
	defer func() { release() }()
	return brokerapi.ReadRequest(conn, func(length uint32) error {
		if length <= brokerapi.SmallRequest {
			return nil
		}
		select {
		case s.large <- struct{}{}:
			release = func() { <-s.large }
			return nil
		case <-time.After(brokerapi.RequestTimeout):
			return &brokerapi.Error{Code: brokerapi.CodeBusy, Message: "too many large requests are being received: retry"}
		}
	})
}

// checkClient returns an error unless the kernel says that the peer is virt-handler's user, or the broker's own.
func (s *Server) checkClient(conn *net.UnixConn) error {
	peer, err := pods.PeerCredentials(conn)
	if err != nil {
		return err
	}
	if peer.Uid != s.ClientUID && int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("the client is user %d, not %d", peer.Uid, s.ClientUID)
	}
	return nil
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
	task, err := s.task(request)
	if err != nil {
		return errors.Join(err, s.send(conn, answer{}, err))
	}
	if task.watch != nil {
		return s.watch(ctx, conn, request.Pod, task)
	}
	got, err := s.run(ctx, request.Pod, task)
	return errors.Join(err, s.send(conn, got, err))
}

// watch sends a response now and after each change.
func (s *Server) watch(ctx context.Context, conn *net.UnixConn, pod string, t task) error {
	release, err := t.limit.acquire(ctx, pod)
	if err != nil {
		return errors.Join(err, s.send(conn, answer{}, err))
	}
	defer release()
	for {
		got, changed := t.watch()
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

// run does a task. It returns when the task has ended or its time is over. The task counts as a request in flight until it has ended and
// its result is closed.
func (s *Server) run(ctx context.Context, pod string, t task) (answer, error) {
	if t.wait != nil {
		release, err := s.waits.acquire(ctx, pod)
		if err != nil {
			return answer{}, err
		}
		err = t.wait(ctx)
		release()
		if err != nil {
			return answer{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, brokerapi.VerbTimeout)
	defer cancel()
	release, err := t.limit.acquire(ctx, pod)
	if err != nil {
		return answer{}, err
	}
	type outcome struct {
		answer answer
		err    error
	}
	done := make(chan outcome)
	go func() {
		got, err := t.run(ctx)
		got.releases = append(got.releases, release)
		select {
		case done <- outcome{got, err}:
		case <-ctx.Done():
			got.close()
		}
	}()
	select {
	case got := <-done:
		return got.answer, got.err
	case <-ctx.Done():
		return answer{}, &brokerapi.Error{Code: brokerapi.CodeTimeout, Message: "the node did not respond in time"}
	}
}

// send sends a response and closes its descriptor.
func (s *Server) send(conn *net.UnixConn, got answer, err error) error {
	defer got.close()
	response := &brokerapi.Response{}
	if err != nil {
		response.Error = brokerapi.FromError(err)
	} else if got.result != nil {
		if response.Result, err = json.Marshal(got.result); err != nil {
			return err
		}
	}
	if err := conn.SetWriteDeadline(time.Now().Add(brokerapi.RequestTimeout)); err != nil {
		return err
	}
	if err := brokerapi.WriteResponse(conn, response, got.file); err != nil {
		return fmt.Errorf("send the response: %w", err)
	}
	return nil
}
