// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/test/broker"
	"github.com/vireo-project/vireo/test/scriptedlibvirtd"
)

func TestBackoff(t *testing.T) {
	silent := fmt.Errorf("read the domain: %w", errSilent)
	failed := func(err error) func(*backoff) time.Duration {
		return func(b *backoff) time.Duration { return b.failed(err, false) }
	}
	lost := func(err error, lived time.Duration) func(*backoff) time.Duration {
		return func(b *backoff) time.Duration { return b.lost(err, lived, false) }
	}
	slow := func(b *backoff) time.Duration { return b.lost(silent, time.Second, true) }
	times := func(n int, do func(*backoff) time.Duration) []func(*backoff) time.Duration {
		var out []func(*backoff) time.Duration
		for range n {
			out = append(out, do)
		}
		return out
	}
	for name, tc := range map[string]struct {
		before []func(*backoff) time.Duration
		last   func(*backoff) time.Duration
		want   time.Duration
	}{
		"a first failure":                           {nil, failed(io.EOF), firstBackoff},
		"a third failure":                           {times(2, failed(io.EOF)), failed(io.EOF), 4 * firstBackoff},
		"many failures":                             {times(50, failed(io.EOF)), failed(io.EOF), maxBackoff},
		"a connection that is closed at once":       {nil, lost(io.EOF, time.Millisecond), firstBackoff},
		"ever again":                                {times(50, lost(io.EOF, time.Millisecond)), lost(io.EOF, time.Millisecond), maxBackoff},
		"a connection that was of use":              {nil, lost(io.EOF, time.Hour), 0},
		"after many failures":                       {times(50, failed(io.EOF)), lost(io.EOF, time.Hour), 0},
		"a call without a response":                 {nil, lost(silent, time.Second), firstQuarantine},
		"an attempt without a response":             {nil, failed(silent), firstQuarantine},
		"a second one":                              {times(1, failed(silent)), lost(silent, time.Second), 2 * firstQuarantine},
		"many calls without a response":             {times(50, lost(silent, time.Second)), lost(silent, time.Second), maxQuarantine},
		"one after a connection that lasted":        {times(50, lost(silent, time.Second)), lost(silent, time.Hour), firstQuarantine},
		"one after a connection that lasted a bit":  {times(50, lost(silent, time.Second)), lost(silent, 2*steady), maxQuarantine},
		"a closed connection between silent ones":   {times(3, lost(silent, time.Second)), lost(io.EOF, time.Second), firstBackoff},
		"a silence after a short connection closes": {append(times(2, failed(silent)), failed(io.EOF)), failed(silent), 4 * firstQuarantine},
		"many calls on a slow node":                 {times(50, slow), slow, firstQuarantine},
		"many calls on a node that is slow again":   {append(times(2, lost(silent, time.Second)), times(50, slow)...), slow, 4 * firstQuarantine},
		"one on a node that is slow no more":        {times(50, slow), lost(silent, time.Second), firstQuarantine},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackoff()
			for _, do := range tc.before {
				do(&b)
			}
			if got := tc.last(&b); got != tc.want {
				t.Errorf("got a delay of %s, want %s", got, tc.want)
			}
		})
	}
}

func TestNodeIsSlowIfMostLaunchersAre(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	silent, responding, both := &session{silent: ago(time.Second)}, &session{responded: ago(time.Second)},
		&session{silent: ago(time.Minute), responded: ago(0)}
	idle, once := &session{responded: ago(recently)}, &session{silent: ago(time.Hour)}
	for name, tc := range map[string]struct {
		others []*session
		want   bool
	}{
		"alone":                                {nil, false},
		"beside launchers that respond":        {[]*session{responding, responding, silent}, false},
		"beside as many that do as do not":     {[]*session{responding, silent}, false},
		"beside launchers of which most don't": {[]*session{silent, responding, both}, true},
		"launchers without calls do not count": {[]*session{silent, idle, idle, idle}, true},
		"and those that were silent long ago":  {[]*session{once, once, responding}, false},
	} {
		t.Run(name, func(t *testing.T) {
			self := &session{silent: now}
			m := &Manager{sessions: map[types.UID]*session{"self": self}}
			for i, other := range tc.others {
				m.sessions[types.UID(fmt.Sprint(i))] = other
			}
			if got := m.isSlow(self, now); got != tc.want {
				t.Errorf("the node is slow: %t, want %t", got, tc.want)
			}
		})
	}
}

// startDaemon creates a Pod with a scripted libvirtd, and a manager that connects to it.
func startDaemon(
	t *testing.T, n *node, response func(*scriptedlibvirtd.Peer, scriptedlibvirtd.Call) bool,
) (*Manager, <-chan struct{}) {
	t.Helper()
	d := scriptedlibvirtd.New()
	d.Respond = response
	if err := d.Listen(n.socket()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	changed := make(chan struct{}, 1000)
	m, err := NewManager(n.options, func(types.NamespacedName) { changed <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.cancel()
		m.wg.Wait()
	})
	return m, changed
}

var testPod = hypervisor.PodRef{UID: podUID, VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}}

// awaitConn waits for a connection.
func awaitConn(t *testing.T, m *Manager, changed <-chan struct{}) *Conn {
	t.Helper()
	late := time.After(patience)
	for {
		conn, err := m.Connect(testPod)
		if err == nil {
			return conn
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("no connection: %v", err)
		}
	}
}

// A connection is closed after a call without a response, and its launcher is unreachable until the next attempt.
func TestSilentLauncherIsInQuarantine(t *testing.T) {
	n := newNode(t)
	n.options.MaxCall = time.Second
	m, changed := startDaemon(t, n, func(_ *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		return c.Proc == scriptedlibvirtd.ProcLookup // and never responds
	})
	conn := awaitConn(t, m, changed)
	_, err := conn.Domain(t.Context(), "ns_vm")
	if !errors.Is(err, hypervisor.ErrUnreachable) {
		t.Fatalf("got %v, want ErrUnreachable", err)
	}
	<-conn.Done()
	late := time.After(patience)
	for err = nil; !errors.Is(err, errSilent) || !errors.Is(err, hypervisor.ErrUnreachable); _, err = m.Connect(testPod) {
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the error is not ErrUnreachable: %v", err)
		}
	}
	// The agent connects again.
	if again := awaitConn(t, m, changed); again == conn {
		t.Error("got the connection that was cut")
	}
}

// The delays grow for a launcher that accepts connections and closes them.
func TestBackoffForClosedConnections(t *testing.T) {
	n := newNode(t)
	opened := make(chan time.Time, 1000)
	m, changed := startDaemon(t, n, func(p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc == scriptedlibvirtd.ProcLookup {
			opened <- time.Now()
			p.Close()
			return true
		}
		return false
	})
	// Only the growth is asserted: a slow node may lengthen the delays.
	const attempts = 7
	for range attempts {
		conn := awaitConn(t, m, changed)
		_, _ = conn.Domain(t.Context(), "ns_vm")
		<-conn.Done()
	}
	first := <-opened
	var last time.Time
	for range attempts - 1 {
		last = <-opened
	}
	if least := (1<<(attempts-1) - 1) * firstBackoff; last.Sub(first) < least {
		t.Errorf("connected %d times in %s, want pauses of at least %s in all", attempts, last.Sub(first), least)
	}
}

// The broker may be restarted at any time. Connections remain, and new ones are made when it responds again.
func TestBrokerIsRestarted(t *testing.T) {
	n, dir, sockets := newNode(t), t.TempDir(), t.TempDir()
	o := broker.Options{PodsDir: dir, CheckPeer: broker.AnyPeer}
	n.options.Broker = brokerclient.New(sockets)
	n.sockets = filepath.Join(dir, string(podUID), "volumes", "kubernetes.io~empty-dir", launcherpod.SocketsVolume)
	if err := os.MkdirAll(n.sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	m, changed := startDaemon(t, n, func(*scriptedlibvirtd.Peer, scriptedlibvirtd.Call) bool { return false })
	if err := n.dial(t, patience); !errors.Is(err, brokerapi.ErrUnreachable) ||
		!errors.Is(err, hypervisor.ErrUnreachable) {
		t.Fatalf("without a broker: %v", err)
	}
	if _, err := m.Connect(testPod); !errors.Is(err, hypervisor.ErrConnecting) {
		t.Fatalf("without a broker: %v", err)
	}
	stop, err := broker.ServeAt(sockets, o)
	if err != nil {
		t.Fatal(err)
	}
	m.RetryBroker()
	conn := awaitConn(t, m, changed)
	stop()
	if _, err := conn.Domain(t.Context(), "ns_vm"); err != nil && !errors.Is(err, hypervisor.ErrNoDomain) {
		t.Errorf("a connection does not work without the broker that made it: %v", err)
	}
	if _, err := m.Tunnel(t.Context(), testPod); !errors.Is(err, brokerapi.ErrUnreachable) {
		t.Errorf("a new connection: %v", err)
	}
	if stop, err = broker.ServeAt(sockets, o); err != nil {
		t.Fatal(err)
	}
	defer stop()
	tunnel, err := m.Tunnel(t.Context(), testPod)
	if err != nil {
		t.Fatal(err)
	}
	_ = tunnel.Close()
}
