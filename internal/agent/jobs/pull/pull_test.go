// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pull

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/test/pki"
)

const (
	exporterName = "virt-export-b.shop.svc"
	podUID       = types.UID("pod")
)

// exporter is a server of which the test takes the connections.
type exporter struct {
	listener net.Listener
	conns    chan net.Conn
	accepted atomic.Int32
}

func newExporter(t *testing.T, ca *pki.Authority, protocol string) *exporter {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol},
		Certificates: []tls.Certificate{ca.IssueHost(exporterName, x509.ExtKeyUsageServerAuth)},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &exporter{listener: listener, conns: make(chan net.Conn, 100)}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				if conn.(*tls.Conn).HandshakeContext(t.Context()) == nil {
					e.accepted.Add(1)
					e.conns <- conn
				}
			}()
		}
	}()
	return e
}

// take returns a connection that is not used yet.
func (e *exporter) take(t *testing.T) net.Conn {
	t.Helper()
	select {
	case conn := <-e.conns:
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	case <-time.After(10 * time.Second):
		t.Fatal("the agent does not connect")
		return nil
	}
}

func (e *exporter) address() backup.Exporter {
	address := e.listener.Addr().(*net.TCPAddr)
	return backup.Exporter{IP: "127.0.0.1", Port: int32(address.Port), ServerName: exporterName, UID: "e"}
}

// qemu is a server that greets and then writes back what it reads.
type qemu struct {
	opened atomic.Int32
	open   atomic.Int32
	fails  atomic.Bool
}

const greeting = "NBDMAGIC"

func (q *qemu) Open(context.Context) (net.Conn, error) {
	q.opened.Add(1)
	if q.fails.Load() {
		return nil, errors.New("there is no such backup")
	}
	ours, theirs := net.Pipe()
	q.open.Add(1)
	go func() {
		defer q.open.Add(-1)
		if _, err := io.WriteString(theirs, greeting); err == nil {
			_, _ = io.Copy(theirs, theirs)
		}
		_ = theirs.Close()
	}()
	return ours, nil
}

func newPulls(t *testing.T, ca *pki.Authority) *Pulls {
	t.Helper()
	p := New(func(serverName string) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca.Pool(), ServerName: serverName,
			NextProtos: []string{backup.ExporterProtocol}}, nil
	})
	p.limits.settled, p.limits.rate = time.Hour, 1000
	p.attempts.SetLimit(1000)
	p.limits.retries = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 8, Cap: time.Second}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		_ = p.Start(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return p
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

func expectEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection stays open")
	}
}

// session uses a connection: it sends the flags, expects the greeting and then what it has sent.
func session(t *testing.T, conn net.Conn) {
	t.Helper()
	content := bytes.Repeat([]byte("what a client sends "), 10000)
	go func() { _, _ = conn.Write(content) }()
	got := make([]byte, len(greeting)+len(content))
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(conn, got); err != nil || string(got[:len(greeting)]) != greeting ||
		!bytes.Equal(got[len(greeting):], content) {
		t.Errorf("%d bytes are not what QEMU has sent: %v", len(got), err)
	}
}

func TestSessions(t *testing.T) {
	ca, q := pki.New(t), &qemu{}
	e := newExporter(t, ca, backup.ExporterProtocol)
	p := newPulls(t, ca)
	p.Serve(podUID, Pull{ID: "b", Exporter: e.address(), Open: q.Open})
	p.Serve(podUID, Pull{ID: "b", Exporter: e.address(), Open: q.Open})
	until(t, "four connections that are not used", func() bool { return e.accepted.Load() == 4 })
	time.Sleep(50 * time.Millisecond)
	if accepted, opened := e.accepted.Load(), q.opened.Load(); accepted != 4 || opened != 0 {
		t.Fatalf("%d connections, and %d to QEMU", accepted, opened)
	}
	// Each that is used is replaced, up to the limit.
	used := []net.Conn{}
	for range p.limits.all {
		conn := e.take(t)
		session(t, conn)
		used = append(used, conn)
	}
	time.Sleep(50 * time.Millisecond)
	if accepted, open := int(e.accepted.Load()), int(q.open.Load()); accepted != p.limits.all || open != p.limits.all {
		t.Errorf("%d connections, and %d to QEMU", accepted, open)
	}
	// One that ends makes place for another, and its connection to QEMU ends.
	_ = used[0].Close()
	session(t, e.take(t))
	until(t, "one connection to QEMU has ended", func() bool { return int(q.open.Load()) == p.limits.all })
	p.End(podUID)
	p.End(podUID)
	expectEnd(t, used[1])
	until(t, "all connections to QEMU have ended", func() bool { return q.open.Load() == 0 })
}

func TestExporterIsReplaced(t *testing.T) {
	ca, q := pki.New(t), &qemu{}
	before, after := newExporter(t, ca, backup.ExporterProtocol), newExporter(t, ca, backup.ExporterProtocol)
	p := newPulls(t, ca)
	p.Serve(podUID, Pull{ID: "b", Exporter: before.address(), Open: q.Open})
	old := before.take(t)
	p.Serve(podUID, Pull{ID: "b", Exporter: after.address(), Open: q.Open})
	expectEnd(t, old)
	session(t, after.take(t))
}

// TestHostileExporters expects that exporters which misbehave neither reach QEMU nor make the agent busy.
func TestHostileExporters(t *testing.T) {
	ca := pki.New(t)
	for name, tc := range map[string]struct {
		authority *pki.Authority
		protocol  string
		change    func(*backup.Exporter)
	}{
		"another authority": {authority: pki.New(t)},
		"another name":      {change: func(e *backup.Exporter) { e.ServerName = "virt-export-c.shop.svc" }},
		"another protocol":  {protocol: "http/1.1"},
		"no address":        {change: func(e *backup.Exporter) { e.IP = "localhost" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			authority, protocol := ca, backup.ExporterProtocol
			if tc.authority != nil {
				authority = tc.authority
			}
			if tc.protocol != "" {
				protocol = tc.protocol
			}
			e, q := newExporter(t, authority, protocol), &qemu{}
			address := e.address()
			if tc.change != nil {
				tc.change(&address)
			}
			newPulls(t, ca).Serve(podUID, Pull{ID: "b", Exporter: address, Open: q.Open})
			time.Sleep(300 * time.Millisecond)
			if q.opened.Load() != 0 {
				t.Error("it reaches QEMU")
			}
		})
	}
	t.Run("it closes what it has not used", func(t *testing.T) {
		t.Parallel()
		e, q := newExporter(t, ca, backup.ExporterProtocol), &qemu{}
		newPulls(t, ca).Serve(podUID, Pull{ID: "b", Exporter: e.address(), Open: q.Open})
		for range 4 {
			_ = e.take(t).Close()
		}
		end := time.After(500 * time.Millisecond)
		for {
			select {
			case conn := <-e.conns:
				_ = conn.Close()
				continue
			case <-end:
			}
			break
		}
		if accepted := e.accepted.Load(); accepted > 14 {
			t.Errorf("the agent has connected %d times in half a second", accepted)
		}
	})
	t.Run("QEMU does not serve", func(t *testing.T) {
		t.Parallel()
		e, q := newExporter(t, ca, backup.ExporterProtocol), &qemu{}
		q.fails.Store(true)
		newPulls(t, ca).Serve(podUID, Pull{ID: "b", Exporter: e.address(), Open: q.Open})
		conn := e.take(t)
		if _, err := io.WriteString(conn, "flag"); err != nil {
			t.Fatal(err)
		}
		expectEnd(t, conn)
		q.fails.Store(false)
		session(t, e.take(t))
	})
	t.Run("it does not read", func(t *testing.T) {
		t.Parallel()
		e, q := newExporter(t, ca, backup.ExporterProtocol), &qemu{}
		p := newPulls(t, ca)
		p.Serve(podUID, Pull{ID: "b", Exporter: e.address(), Open: q.Open})
		conn := e.take(t)
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		n, _ := io.Copy(conn, io.LimitReader(neverEnding{}, 1<<30))
		if n == 1<<30 {
			t.Error("the agent buffers a gibibyte")
		}
		// Other connections are not delayed.
		session(t, e.take(t))
		p.End(podUID)
		until(t, "all connections to QEMU have ended", func() bool { return q.open.Load() == 0 })
	})
}

// TestHostileExportersOfANode expects a limit of all exporters together, and of what each of them causes in the log.
func TestHostileExportersOfANode(t *testing.T) {
	ca, q := pki.New(t), &qemu{}
	p := newPulls(t, ca)
	p.limits.retries = wait.Backoff{Duration: time.Microsecond}
	p.attempts.SetLimit(20)
	p.attempts.SetBurst(1)
	var lines atomic.Int32
	ctrllog.SetLogger(funcr.New(func(string, string) { lines.Add(1) }, funcr.Options{}))
	exporters := make([]*exporter, 3)
	for i := range exporters {
		e := newExporter(t, ca, backup.ExporterProtocol)
		exporters[i] = e
		go func() {
			for {
				select {
				case conn := <-e.conns:
					_ = conn.Close()
				case <-t.Context().Done():
					return
				}
			}
		}()
		p.Serve(types.UID(rune('a'+i)), Pull{ID: "b", Exporter: e.address(), Open: q.Open})
	}
	time.Sleep(time.Second)
	for i, e := range exporters {
		if accepted := e.accepted.Load(); accepted == 0 || accepted > 15 {
			t.Errorf("the agent has connected %d times to the exporter %d in a second", accepted, i)
		}
	}
	if got := lines.Load(); got == 0 || got > 3 {
		t.Errorf("there are %d lines in the log", got)
	}
}

// TestLateExporter expects that all connections follow the first one that succeeds, although none is used.
func TestLateExporter(t *testing.T) {
	ca, q := pki.New(t), &qemu{}
	e := newExporter(t, ca, backup.ExporterProtocol)
	p := newPulls(t, ca)
	p.limits.retries = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 600, Steps: 2, Cap: time.Minute}
	var failed atomic.Bool
	config := p.tls
	p.tls = func(serverName string) (*tls.Config, error) {
		if !failed.Swap(true) {
			return nil, errors.New("there is no certificate yet")
		}
		return config(serverName)
	}
	p.Serve(podUID, Pull{ID: "b", Exporter: e.address(), Open: q.Open})
	until(t, "four connections", func() bool { return e.accepted.Load() == 4 })
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return copy(p, strings.Repeat("x", len(p))), nil }

func TestNothingWithoutConfiguration(t *testing.T) {
	p, q := New(nil), &qemu{}
	p.Serve(podUID, Pull{ID: "b", Open: q.Open})
	p.End(podUID)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := p.Start(ctx); err != nil || q.opened.Load() != 0 {
		t.Errorf("QEMU was opened %d times: %v", q.opened.Load(), err)
	}
}
