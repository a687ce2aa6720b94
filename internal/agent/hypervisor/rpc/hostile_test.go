// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
	"github.com/vireo-project/vireo/test/broker"
)

// The launchers of these tests are what a Pod could run behind its libvirt socket.

const podUID = types.UID("0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11")

// patience is the timeout for what must end by itself.
const patience = 20 * time.Second

type node struct {
	options Options
	sockets string
}

// newNode returns a node with a broker that accepts this process as the process of every Pod.
func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeWith(t, broker.AnyPeer)
}

func newNodeWith(t *testing.T, check pods.CheckPeer) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{options: Options{
		Broker:   broker.Start(t, broker.Options{PodsDir: dir, CheckPeer: check}),
		RelayDir: t.TempDir(), Responses: hypervisor.NewResponseBudget(),
	}}
	n.sockets = filepath.Join(dir, string(podUID), "volumes", "kubernetes.io~empty-dir", launcherpod.SocketsVolume)
	if err := os.MkdirAll(n.sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) socket() string { return filepath.Join(n.sockets, launcherpod.LibvirtSocketName) }

// listen serves each connection with the behavior of a hostile launcher.
func listen(t *testing.T, path string, serve func(net.Conn)) {
	t.Helper()
	// It is bound to a short name and moved: a socket's address has at most 108 bytes, its file has no such limit.
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(short, "s"))
	if err == nil {
		err = os.Rename(filepath.Join(short, "s"), path)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = listener.Close()
		_ = os.RemoveAll(short)
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
}

func (n *node) dial(t *testing.T, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		conn, err := Dial(ctx, n.options, hypervisor.PodRef{UID: podUID})
		if err == nil {
			conn.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit + patience):
		t.Fatal("the agent hangs")
		return nil
	}
}

func expectUnreachable(t *testing.T, err error, because string) {
	t.Helper()
	if !errors.Is(err, hypervisor.ErrUnreachable) {
		t.Fatalf("got %v, want ErrUnreachable", err)
	}
	if !strings.Contains(err.Error(), because) {
		t.Errorf("%q does not contain %q", err, because)
	}
}

func TestSymlinksAreNotFollowed(t *testing.T) {
	for _, tc := range []struct {
		name, refusal string
		plant         func(t *testing.T, n *node, elsewhere string)
	}{
		{"the socket", "is no socket", func(t *testing.T, n *node, elsewhere string) {
			if err := os.Symlink(filepath.Join(elsewhere, launcherpod.LibvirtSocketName), n.socket()); err != nil {
				t.Fatal(err)
			}
		}},
		{"its directory", "symbolic links", func(t *testing.T, n *node, elsewhere string) {
			if err := errors.Join(os.Remove(n.sockets), os.Symlink(elsewhere, n.sockets)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			elsewhere := t.TempDir()
			reached := make(chan struct{}, 1)
			listen(t, filepath.Join(elsewhere, launcherpod.LibvirtSocketName), func(c net.Conn) {
				reached <- struct{}{}
				_ = c.Close()
			})
			tc.plant(t, n, elsewhere)
			expectUnreachable(t, n.dial(t, patience), tc.refusal)
			select {
			case <-reached:
				t.Error("the agent connected through a symlink")
			default:
			}
		})
	}
}

func TestFileThatIsNotASocket(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile(n.socket(), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	expectUnreachable(t, n.dial(t, patience), "is no socket")
}

func TestSocketOfAnotherProcess(t *testing.T) {
	n := newNodeWith(t, nil) // the real check: this test's process is neither QEMU's user nor in the Pod
	reached := make(chan []byte, 1)
	listen(t, n.socket(), func(c net.Conn) {
		got, _ := io.ReadAll(c)
		reached <- got
	})
	expectUnreachable(t, n.dial(t, patience), "is served by user")
	if got := <-reached; len(got) != 0 {
		t.Errorf("the agent sent %q to a process that is not the Pod's", got)
	}
}

func TestInvalidProtocol(t *testing.T) {
	length := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for _, tc := range []struct {
		name  string
		serve func(net.Conn)
	}{
		{"sends nothing", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"closes the connection", func(c net.Conn) { _ = c.Close() }},
		{"announces a message that is too long", func(c net.Conn) {
			_, _ = c.Write(length(1 << 31))
			_, _ = io.Copy(io.Discard, c)
		}},
		{"announces a message that is too short", func(c net.Conn) {
			_, _ = c.Write(length(3))
			_, _ = io.Copy(io.Discard, c)
		}},
		{"stops in the middle of a message", func(c net.Conn) {
			_, _ = c.Write(append(length(1<<20), make([]byte, 100)...))
			_, _ = io.Copy(io.Discard, c)
		}},
		{"never stops", func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for {
				if _, err := c.Write(append(length(1<<20), make([]byte, 1<<20-4)...)); err != nil {
					return
				}
			}
		}},
		{"responds with noise", func(c net.Conn) {
			_, _ = c.Write(append(length(64), make([]byte, 60)...))
			_, _ = io.Copy(io.Discard, c)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			listen(t, n.socket(), tc.serve)
			expectUnreachable(t, n.dial(t, time.Second), "connect")
			left, err := os.ReadDir(n.options.RelayDir)
			if err != nil || len(left) != 0 {
				t.Errorf("left in the relay directory: %v (%v)", left, err)
			}
		})
	}
}

// Procedures and types of messages between the client and the launcher: a lookup and a lifecycle event.
const (
	programRemote          = 0x20008086
	procLookup             = 23
	procRegister           = 316
	procLifecycle          = 318
	typeCall, typeReply    = 0, 1
	typeMessage            = 2
	lookupSerial, noSerial = 7, 0
)

// message returns a message of size bytes.
func message(proc, kind, serial uint32, size int) []byte {
	var m []byte
	for _, word := range []uint32{uint32(size), programRemote, 1, proc, kind, serial, 0} {
		m = binary.BigEndian.AppendUint32(m, word)
	}
	return append(m, make([]byte, max(0, min(size, 1<<20)-len(m)))...)
}

// startRelay returns a relay and its connections to the client and the launcher.
func startRelay(t *testing.T, missed func()) (r *relay, client, launcher net.Conn) {
	t.Helper()
	ours, theirs := unixPair(t)
	r, err := newRelay(t.TempDir(), ours, missed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.cut(net.ErrClosed) })
	client, err = net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return r, client, theirs
}

// pass sends a message through the relay.
func pass(t *testing.T, from, to net.Conn, m []byte) {
	t.Helper()
	if _, err := from.Write(m); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(m))
	if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, m) {
		t.Fatalf("got something else (%v)", err)
	}
}

func TestRelayClosesAfterLongResponse(t *testing.T) {
	r, client, launcher := startRelay(t, func() {})
	pass(t, client, launcher, message(procLookup, typeCall, lookupSerial, 40))
	if _, err := launcher.Write(message(procLookup, typeReply, lookupSerial, MaxMessage+1)[:28]); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); err != nil || len(got) != 0 {
		t.Errorf("the client got %d bytes (%v)", len(got), err)
	}
	<-r.done()
	if !errors.Is(r.err(), errMessage) {
		t.Errorf("cut because of %v", r.err())
	}
}

func TestRelayClosesAfterResponseWithoutCall(t *testing.T) {
	r, client, launcher := startRelay(t, func() {})
	if _, err := launcher.Write(message(procLookup, typeReply, lookupSerial, 40)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); err != nil || len(got) != 0 {
		t.Errorf("the client got %d bytes (%v)", len(got), err)
	}
	<-r.done()
	if !errors.Is(r.err(), libvirtwire.ErrRefused) {
		t.Errorf("cut because of %v", r.err())
	}
}

func TestRelayCopiesBothWays(t *testing.T) {
	_, client, launcher := startRelay(t, func() {})
	pass(t, client, launcher, message(procLookup, typeCall, lookupSerial, 40))
	pass(t, launcher, client, message(procLookup, typeReply, lookupSerial, hypervisor.SmallResponse))
}

// Events of a launcher that keeps sending them are rate limited, and its responses are still forwarded.
func TestTooManyEventsAreDropped(t *testing.T) {
	missed := make(chan struct{}, 100)
	_, client, launcher := startRelay(t, func() { missed <- struct{}{} })
	register := message(procRegister, typeCall, lookupSerial, 36)
	pass(t, client, launcher, register)
	const flood, eventSize = 3 * BurstEvents, 64
	go func() {
		for range flood {
			if _, err := launcher.Write(message(procLifecycle, typeMessage, noSerial, eventSize)); err != nil {
				return
			}
		}
		_, _ = launcher.Write(message(procRegister, typeReply, lookupSerial, 32))
	}()
	events := 0
	for {
		head := make([]byte, 28)
		if _, err := io.ReadFull(client, head); err != nil {
			t.Fatal(err)
		}
		if binary.BigEndian.Uint32(head[16:]) == typeReply {
			break
		}
		events++
		if _, err := io.CopyN(io.Discard, client, eventSize-28); err != nil {
			t.Fatal(err)
		}
	}
	if events < BurstEvents || events == flood {
		t.Errorf("%d of %d events came through, want little more than %d", events, flood, BurstEvents)
	}
	select {
	case <-missed:
	case <-time.After(patience):
		t.Error("missed was not called after events were dropped")
	}
}

// unixPair returns the two ends of a connection for the relay.
func unixPair(t *testing.T) (ours *net.UnixConn, theirs net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	accepted := make(chan net.Conn, 1)
	listen(t, path, func(c net.Conn) { accepted <- c })
	ours, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	theirs = <-accepted
	t.Cleanup(func() {
		_ = ours.Close()
		_ = theirs.Close()
	})
	return ours, theirs
}

func TestManagerReconnects(t *testing.T) {
	n := newNode(t)
	notices := make(chan types.NamespacedName, 100)
	m, err := NewManager(n.options, func(key types.NamespacedName) { notices <- key })
	if err != nil {
		t.Fatal(err)
	}
	tries := make(chan struct{}, 1000)
	listen(t, n.socket(), func(c net.Conn) {
		tries <- struct{}{}
		_ = c.Close()
	})
	pod := hypervisor.PodRef{UID: podUID, VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}}
	if _, err := m.Connect(pod); !errors.Is(err, hypervisor.ErrConnecting) {
		t.Errorf("got %v, want ErrConnecting", err)
	}
	for range 3 {
		select {
		case <-tries:
		case <-time.After(patience):
			t.Fatal("the manager stopped trying")
		}
	}
	m.Forget(podUID)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Start(ctx); err != nil {
		t.Error(err)
	}
}
