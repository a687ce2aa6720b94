// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// unreachableAfter is how long attempts must fail before the VMI is enqueued: libvirtd starts and ends with its Pod,
// which need not be reported.
const unreachableAfter = 5 * time.Second

// Manager keeps a connection to each launcher Pod for which Connect or WaitConnected was called, and makes a new one
// when it ends.
type Manager struct {
	options Options
	notify  func(types.NamespacedName)

	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	started time.Time

	panics panics

	mu       sync.Mutex
	sessions map[types.UID]*session
	// broker is closed and replaced when the broker responds again.
	broker chan struct{}
}

// NewManager returns a Manager. It calls notify with a VMI's key when a connection is made or ends and after libvirt's
// events about the domain; notify must not block.
func NewManager(o Options, notify func(types.NamespacedName)) (*Manager, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	// Here, at the start of the process, no other thread can read the environment that it sets.
	if err := initLibvirt(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.RelayDir, 0o700); err != nil {
		return nil, fmt.Errorf("create the relay directory: %w", err)
	}
	// Remove the sockets of an earlier process, which nothing can be connected to.
	entries, err := os.ReadDir(o.RelayDir)
	if err != nil {
		return nil, fmt.Errorf("read the relay directory: %w", err)
	}
	root, err := os.OpenRoot(o.RelayDir)
	if err != nil {
		return nil, fmt.Errorf("open the relay directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	for _, e := range entries {
		if err := root.RemoveAll(e.Name()); err != nil {
			return nil, fmt.Errorf("empty the relay directory: %w", err)
		}
	}
	if err := os.Chmod(o.RelayDir, 0o700); err != nil { //nolint:gosec // a directory must be entered
		return nil, fmt.Errorf("restrict access to the relay directory: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{
		options: o, notify: notify, ctx: ctx, cancel: cancel, started: time.Now(), sessions: map[types.UID]*session{},
		broker: make(chan struct{}),
	}
	m.options.Panicked = func(vmi types.NamespacedName) { m.panics.add(vmi, time.Now()) }
	return m, nil
}

// Start closes all connections when the context ends. Guests keep running.
func (m *Manager) Start(ctx context.Context) error {
	<-ctx.Done()
	m.cancel()
	m.wg.Wait()
	return nil
}

// Connect returns the connection to a Pod. If there is none it makes one in the background and returns
// hypervisor.ErrConnecting, or hypervisor.ErrUnreachable after a failure.
func (m *Manager) Connect(pod hypervisor.PodRef) (*Conn, error) {
	conn, _, err := m.session(pod).current()
	return conn, err
}

// WaitConnected returns the connection to a Pod like Connect, but while it is being made it waits until the context
// ends.
func (m *Manager) WaitConnected(ctx context.Context, pod hypervisor.PodRef) (*Conn, error) {
	s := m.session(pod)
	for {
		conn, changed, err := s.current()
		if !errors.Is(err, hypervisor.ErrConnecting) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-s.ended:
			return nil, err
		case <-changed:
		}
	}
}

// session returns the session of a Pod. If there is none it starts one.
func (m *Manager) session(pod hypervisor.PodRef) *session {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.sessions[pod.UID]
	if !ok {
		ctx, cancel := context.WithCancel(m.ctx)
		s = &session{manager: m, pod: pod, cancel: cancel, ended: ctx.Done(), err: hypervisor.ErrConnecting,
			changed: make(chan struct{})}
		m.sessions[pod.UID] = s
		wait := spread(m.options.FirstConnections, time.Since(m.started), rand.N)
		m.wg.Go(func() {
			sleep(ctx, wait)
			s.run(ctx)
		})
	}
	return s
}

// RetryBroker makes connections at once that could not be made because the broker did not respond.
func (m *Manager) RetryBroker() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.broker)
	m.broker = make(chan struct{})
}

// brokerResponds returns a channel that is closed when the broker responds again.
func (m *Manager) brokerResponds() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broker
}

// IfConnected returns the connection to a Pod like Connect, but makes none. It is for callers that do not know whether
// the Pod still exists.
func (m *Manager) IfConnected(pod types.UID) (*Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.sessions[pod]; ok {
		conn, _, err := s.current()
		return conn, err
	}
	return nil, hypervisor.ErrUnreachable
}

// spread returns the delay of the first connection to a Pod. When the agent starts, it needs all of them at once, and
// does not know which launchers were in quarantine.
func spread(over, elapsed time.Duration, random func(time.Duration) time.Duration) time.Duration {
	if elapsed >= over {
		return 0
	}
	return random(over)
}

// Forget closes the connection to a Pod and makes no new one.
func (m *Manager) Forget(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.sessions[pod]; ok {
		s.cancel()
		delete(m.sessions, pod)
	}
}

// session keeps a connection to one Pod.
type session struct {
	manager *Manager
	pod     hypervisor.PodRef
	cancel  context.CancelFunc
	// ended is closed by cancel, and when the Manager stops.
	ended <-chan struct{}

	mu   sync.Mutex
	conn *Conn
	err  error
	// changed is closed and replaced when conn and err change.
	changed chan struct{}
	// silent is when a call last timed out, and responded when an earlier connection last got a response.
	silent, responded time.Time
}

// current returns the connection, or why there is none, and a channel that is closed at the next change of either.
func (s *session) current() (*Conn, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil, s.changed, s.err
	}
	select {
	case <-s.conn.Done():
		// run is about to notice this, and enqueues the VMI.
		return nil, s.changed, connecting(s.conn)
	default:
		return s.conn, s.changed, nil
	}
}

// connecting is the error of a connection that is being made anew.
func connecting(lost *Conn) error { return fmt.Errorf("%w: %w", hypervisor.ErrConnecting, lost.Err()) }

func (s *session) set(conn *Conn, err error) {
	s.mu.Lock()
	s.conn, s.err = conn, err
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	s.manager.notify(s.pod.VMI)
}

func (s *session) run(ctx context.Context) {
	logger := log.Log.WithName("hypervisor").WithValues("pod", s.pod.UID, "vmi", s.pod.VMI)
	waits := newBackoff()
	failingSince := time.Time{}
	for ctx.Err() == nil {
		broker := s.manager.brokerResponds()
		conn, err := s.connect(ctx)
		var pause time.Duration
		switch {
		case ctx.Err() != nil && err != nil:
			return
		case err != nil:
			pause = waits.failed(err, s.noteEnd(err, nil))
			logger.V(3).Info("Cannot connect to libvirtd", "error", err.Error(), "retryIn", pause.String())
			if failingSince.IsZero() {
				failingSince = time.Now()
			}
			if errors.Is(err, errSilent) || time.Since(failingSince) > unreachableAfter {
				s.set(nil, asUnreachable(err))
			}
		default:
			failingSince = time.Time{}
			pause = s.serve(ctx, conn, &waits)
			if ctx.Err() == nil {
				logger.Info("Lost the connection to libvirtd", "error", conn.Err().Error(), "retryIn", pause.String())
			}
		}
		if !errors.Is(err, brokerapi.ErrUnreachable) {
			broker = nil
		}
		select {
		case <-ctx.Done():
		case <-broker:
		case <-time.After(pause):
		}
	}
}

// serve provides a connection until it ends, and returns the delay before the next one.
func (s *session) serve(ctx context.Context, conn *Conn, waits *backoff) time.Duration {
	// Close waits for its calls, which end with it.
	defer conn.Close()
	since := time.Now()
	s.set(conn, nil)
	select {
	case <-ctx.Done():
		return 0
	case <-conn.Done():
	}
	pause := waits.lost(conn.Err(), time.Since(since), s.noteEnd(conn.Err(), conn))
	if errors.Is(conn.Err(), errSilent) {
		// It stays unreachable until the next attempt.
		s.set(nil, asUnreachable(conn.Err()))
	} else {
		s.set(nil, connecting(conn))
	}
	return pause
}

// noteEnd stores how an attempt or a connection ended, and reports whether the node is slow.
func (s *session) noteEnd(err error, conn *Conn) (slowNode bool) {
	now := time.Now()
	s.mu.Lock()
	if conn != nil {
		s.responded = conn.respondedAt()
	}
	if errors.Is(err, errSilent) {
		s.silent = now
	}
	s.mu.Unlock()
	return s.manager.isSlow(s, now)
}

// contact returns when the launcher last responded, and when a call last timed out.
func (s *session) contact() (responded, silent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		return s.conn.respondedAt(), s.silent
	}
	return s.responded, s.silent
}

// isSlow reports whether the node is slow: whether calls to most of the other launchers that were called recently timed
// out.
func (m *Manager) isSlow(except *session, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	called, silences := 0, 0
	for _, s := range m.sessions {
		if s == except {
			continue
		}
		switch responded, silent := s.contact(); {
		case now.Sub(silent) < recently:
			called, silences = called+1, silences+1
		case now.Sub(responded) < recently:
			called++
		}
	}
	return 2*silences > called
}

// sleep returns after a duration, or when the context ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (s *session) connect(ctx context.Context) (*Conn, error) {
	conn, err := dial(ctx, s.manager.options, s.pod, true)
	if err != nil {
		return nil, err
	}
	if err := conn.Watch(ctx, func() { s.manager.notify(s.pod.VMI) }); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func asUnreachable(err error) error {
	if errors.Is(err, hypervisor.ErrUnreachable) {
		return err
	}
	return fmt.Errorf("%w: %w", hypervisor.ErrUnreachable, err)
}

const (
	// firstBackoff is about the time between libvirtd's bind and listen.
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// steady is how long a connection must have lasted for the backoff to be reset.
	steady = time.Minute
	// firstQuarantine and maxQuarantine are the delays after a call without a response. Each attempt uses a thread until
	// it times out, so the delays grow until even attempts with the longest timeout, of three minutes, take less time than
	// the delays.
	firstQuarantine = 5 * time.Second
	maxQuarantine   = 5 * time.Minute
	// recently is how long a launcher's response, or its absence, counts when the agent decides whether the node is slow:
	// guest agents are polled at least that often.
	recently = maxGuestPoll
)

// backoff decides when the agent connects to a launcher again. A launcher that did not respond to a call in time is in
// quarantine: the delays between attempts double, until a connection lasts.
type backoff struct {
	// failures are the delays after failed attempts and short connections, silences those after a call without a response.
	failures, silences wait.Backoff
}

func newBackoff() backoff {
	return backoff{failures: limits.ExponentialBackoff(firstBackoff, maxBackoff),
		silences: limits.ExponentialBackoff(firstQuarantine, maxQuarantine)}
}

// failed returns the delay after a failed attempt to connect.
func (b *backoff) failed(err error, slowNode bool) time.Duration {
	if errors.Is(err, errSilent) {
		return b.quarantine(slowNode)
	}
	return b.failures.Step()
}

// lost returns the delay after a connection that ended. One that lasted is replaced at once: libvirtd was restarted, or
// the node was suspended. A connection that was closed early is not, because repeated connections cost the agent more
// than its launcher.
func (b *backoff) lost(err error, lived time.Duration, slowNode bool) time.Duration {
	if lived > max(steady, b.silences.Duration) {
		*b = newBackoff()
	}
	if errors.Is(err, errSilent) {
		return b.quarantine(slowNode)
	}
	if lived > steady {
		b.failures = newBackoff().failures
		return 0
	}
	return b.failures.Step()
}

// quarantine returns the delay after a call without a response. It does not grow if the node is slow, which is not the
// launcher's fault.
func (b *backoff) quarantine(slowNode bool) time.Duration {
	if slowNode {
		return b.silences.Duration
	}
	return b.silences.Step()
}
