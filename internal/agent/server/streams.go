// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// consoleBuffer is how much of a console's output is buffered for a client that is slower than the guest.
const consoleBuffer = 256 << 10

// console streams the guest's first serial port. A new client takes it over from the one before, as in KubeVirt.
func (s *Server) console(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	return s.stream(w, r, v, func(session *session) (backend, error) {
		// The earlier session gets its reason before libvirt breaks its stream.
		s.sessions.acquire(session, agentapi.Console, false,
			&closeError{agentapi.CloseTakenOver, "another client took over the console"})
		stream, err := v.conn.OpenConsole(session.ctx, v.domain)
		if err != nil {
			return backend{}, err
		}
		return backend{ReadWriteCloser: newConsoleReader(stream), what: "console"}, nil
	})
}

// consoleReader reads a console continuously, even while its client does not: a guest blocks while its serial port is
// not read. Output that does not fit into the buffer is dropped, and a line in the output reports how much.
type consoleReader struct {
	io.ReadWriteCloser
	mu     sync.Mutex
	filled *sync.Cond
	buffer []byte
	lost   int
	err    error
}

func newConsoleReader(of io.ReadWriteCloser) *consoleReader {
	c := &consoleReader{ReadWriteCloser: of}
	c.filled = sync.NewCond(&c.mu)
	go c.fill()
	return c
}

// fill reads until the console is closed.
func (c *consoleReader) fill() {
	chunk := make([]byte, chunkSize)
	for {
		n, err := c.ReadWriteCloser.Read(chunk)
		c.mu.Lock()
		room := min(n, consoleBuffer-len(c.buffer))
		// Once output was dropped, all of it is until the client has read the buffer: one gap reads better than many.
		if c.lost > 0 {
			room = 0
		}
		c.buffer = append(c.buffer, chunk[:room]...)
		c.lost += n - room
		c.err = err
		c.filled.Signal()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Read blocks until there is output.
func (c *consoleReader) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buffer) == 0 && c.lost == 0 && c.err == nil {
		c.filled.Wait()
	}
	if len(c.buffer) == 0 && c.lost > 0 {
		c.buffer = fmt.Appendf(c.buffer[:0], "\r\n[%d bytes of the console were lost: the client is too slow]\r\n", c.lost)
		c.lost = 0
	}
	if len(c.buffer) == 0 {
		c.buffer = nil
		return 0, c.err
	}
	n := copy(p, c.buffer)
	c.buffer = c.buffer[n:]
	return n, nil
}

// vnc streams the guest's screen to one client at a time, as in KubeVirt.
func (s *Server) vnc(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	preserve, err := boolParameter(r, agentapi.PreserveSessionParameter)
	if err != nil {
		return err
	}
	return s.stream(w, r, v, func(session *session) (backend, error) {
		screen, err := v.conn.OpenGraphics(session.ctx, v.domain)
		if err != nil {
			return backend{}, err
		}
		if !s.sessions.acquire(session, agentapi.VNC, preserve,
			&closeError{agentapi.CloseTakenOver, "another client took over the screen"}) {
			_ = screen.Close()
			// KubeVirt's code and words (pkg/virt-handler/rest/console.go).
			return backend{}, apierrors.NewServiceUnavailable("Active VNC connection. Request denied.")
		}
		return backend{ReadWriteCloser: screen, what: "screen"}, nil
	})
}

// boolParameter returns a parameter, false if it is absent.
func boolParameter(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, apierrors.NewBadRequest("the parameter " + name + " is neither true nor false")
	}
	return value, nil
}

// usbRedir connects a client to the guest's first free USB port. The client keeps the port until it disconnects:
// another client does not take it over.
func (s *Server) usbRedir(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	if v.vmi.Spec.Domain.Devices.ClientPassthrough == nil {
		// virt-api's message.
		return conflict(v.vmi.Name, "Not configured with USB Redirection")
	}
	return s.stream(w, r, v, func(session *session) (backend, error) {
		port, found := s.sessions.acquireFree(session, agentapi.USBRedir, launcherpod.USBPorts)
		if !found {
			// KubeVirt's code (pkg/virt-handler/rest/console.go).
			return backend{}, apierrors.NewServiceUnavailable(fmt.Sprintf(
				"All USB devices are in use: clients have %d devices in the guest, which is as many as it has ports for",
				launcherpod.USBPorts))
		}
		conn, err := v.conn.OpenUSB(session.ctx, port)
		if err != nil {
			return backend{}, err
		}
		return backend{ReadWriteCloser: conn, what: "USB port " + strconv.Itoa(port)}, nil
	})
}

// vsock connects to a VSOCK port of the guest, at the CID that virt-controller assigned. With TLS, the guest must use
// TLS 1.3 and its certificate is not verified, as in KubeVirt: the kernel connects to no other guest. Unlike
// KubeVirt's, this agent has no client certificate: a guest cannot get the authority to verify it.
func (s *Server) vsock(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	port, err := strconv.ParseUint(r.URL.Query().Get(agentapi.PortParameter), 10, 32)
	if err != nil {
		return apierrors.NewBadRequest("the parameter " + agentapi.PortParameter +
			" is no port of VSOCK, a number of 32 bits")
	}
	secure, err := boolParameter(r, agentapi.TLSParameter)
	if err != nil {
		return err
	}
	if v.vmi.Status.VSOCKCID == nil || *v.vmi.Status.VSOCKCID < firstGuest {
		return apierrors.NewBadRequest("VM doesn't have VSOCK enabled")
	}
	return s.stream(w, r, v, func(session *session) (backend, error) {
		ctx, cancel := context.WithTimeout(session.ctx, dialTimeout)
		defer cancel()
		conn, err := s.dialVSOCK(ctx, *v.vmi.Status.VSOCKCID, uint32(port))
		if err == nil && secure {
			conn, err = overTLS(ctx, conn)
		}
		if err != nil {
			return backend{}, fmt.Errorf("%w: %w", errNoConnection, err)
		}
		return backend{ReadWriteCloser: conn, what: "connection to VSOCK port " + strconv.FormatUint(port, 10)}, nil
	})
}

func overTLS(ctx context.Context, conn net.Conn) (net.Conn, error) {
	secured := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}) //nolint:gosec // see vsock
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}
