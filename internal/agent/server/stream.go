// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

const (
	// chunkSize is the largest message to the client.
	chunkSize = 32 << 10
	// maxMessage is the largest message from the client. It is never in memory as a whole.
	maxMessage = 1 << 20
	// clientTimeout bounds a write to the client.
	clientTimeout = 30 * time.Second
	// guestTimeout bounds a write to the guest.
	guestTimeout = 5 * time.Minute
	// StreamBytes is the memory of a stream: a buffer for each direction, the data between two reads from the launcher,
	// and as much again for the websocket, TLS and goroutines. It is exported for the test in cmd/virt-handler/agent that
	// adds up the memory that an agent may need.
	StreamBytes = 5 * chunkSize
	// maxReason is the length of a close frame's reason. Source: RFC 6455, 5.5 and 5.5.1.
	maxReason = 123
)

// backend is the guest's side of a stream. Closing it ends reads and writes.
type backend struct {
	io.ReadWriteCloser
	// what is its name in messages.
	what string
	// datagrams means that each message is one datagram and each datagram one message.
	datagrams bool
}

// checkUpgrade rejects a client that does not offer the protocol, before the guest's side is opened.
func checkUpgrade(r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return apierrors.NewBadRequest("this is a stream: request it with a websocket")
	}
	var offered []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			offered = append(offered, strings.TrimSpace(name))
		}
	}
	if !slices.Contains(offered, agentapi.StreamProtocol) {
		return apierrors.NewBadRequest("the stream's protocol is " + agentapi.StreamProtocol +
			", which the client does not offer")
	}
	return nil
}

// stream serves a stream: it adds it to the sessions, opens the guest's side and bridges the two.
func (s *Server) stream(
	w http.ResponseWriter, r *http.Request, v *runningVMI, open func(*session) (backend, error),
) error {
	if err := checkUpgrade(r); err != nil {
		return err
	}
	session, err := s.sessions.open(r.Context(), v.vmi.Namespace, v.vmi.UID)
	if err != nil {
		return err
	}
	defer s.sessions.close(session)
	to, err := open(session)
	if err != nil {
		return err
	}
	bridge(w, r, session, to)
	return nil
}

// bridge connects a client with a backend until one of them closes or the session's context is done. It takes over the
// connection, so it returns no error, and closes the backend.
func bridge(w http.ResponseWriter, r *http.Request, s *session, to backend) {
	logger := log.FromContext(r.Context()).WithValues("stream", to.what, "vmi",
		r.PathValue("namespace")+"/"+r.PathValue("name"))
	defer func() { _ = to.Close() }()
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{agentapi.StreamProtocol}, CompressionMode: websocket.CompressionDisabled,
		// No browser gets here: the client has a certificate.
		InsecureSkipVerify: true,
	})
	if err != nil {
		// Accept has sent the response.
		logger.V(3).Info("Cannot upgrade", "error", err.Error())
		return
	}
	socket.SetReadLimit(maxMessage)
	finished := make(chan error, 2)
	var copies sync.WaitGroup
	copies.Go(func() { finished <- toClient(s.ctx, socket, to) })
	copies.Go(func() { finished <- fromClient(s.ctx, socket, to) })
	var cause error
	select {
	case cause = <-finished:
	case <-s.ctx.Done():
	}
	// If the session was canceled, a copy may have failed because of that.
	if s.ctx.Err() != nil {
		cause = context.Cause(s.ctx)
	}
	// If another client took over the console, this makes it free.
	_ = to.Close()
	code, reason := closeFrame(to.what, cause)
	logger.V(3).Info("A stream ended", "code", code, "reason", reason)
	// The close handshake waits some seconds for a client that may be gone.
	_ = socket.Close(code, reason)
	copies.Wait()
}

// errClient marks errors of the client's side.
var errClient = errors.New("client")

// toClient copies from the guest to the client.
func toClient(ctx context.Context, socket *websocket.Conn, from backend) error {
	size := chunkSize
	if from.datagrams {
		size = maxDatagram
	}
	buffer := make([]byte, size)
	for {
		n, err := from.Read(buffer)
		if n > 0 || (from.datagrams && err == nil) {
			if err := send(ctx, socket, buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// send sends one message. It fails with a closeError if the client does not read.
func send(ctx context.Context, socket *websocket.Conn, message []byte) error {
	// A canceled session must not interrupt a message: the close frame follows it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clientTimeout)
	defer cancel()
	err := socket.Write(ctx, websocket.MessageBinary, message)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &closeError{websocket.StatusPolicyViolation, fmt.Sprintf("the client took nothing for %s", clientTimeout)}
	default:
		return fmt.Errorf("%w: %w", errClient, err)
	}
}

// fromClient copies from the client to the guest.
func fromClient(ctx context.Context, socket *websocket.Conn, to backend) error {
	writer := &timeoutWriter{to: to}
	buffer := make([]byte, chunkSize)
	if to.datagrams {
		buffer = make([]byte, maxDatagram+1)
	}
	for {
		// Not the session's context: when that is done, coder/websocket closes the connection without a close frame.
		_, message, err := socket.Reader(context.WithoutCancel(ctx))
		if err != nil {
			return fmt.Errorf("%w: %w", errClient, err)
		}
		if to.datagrams {
			err = forwardDatagram(writer, message, buffer)
		} else {
			_, err = io.CopyBuffer(writer, struct{ io.Reader }{message}, buffer)
		}
		if err != nil {
			return writer.attribute(err)
		}
	}
}

// timeoutWriter writes to the guest's side, with a timeout for each write.
type timeoutWriter struct {
	to  backend
	err error
}

// Write writes all of p.
func (w *timeoutWriter) Write(p []byte) (int, error) {
	timer := time.AfterFunc(guestTimeout, func() { _ = w.to.Close() })
	n, err := w.to.Write(p)
	if !timer.Stop() {
		err = &closeError{websocket.StatusPolicyViolation, fmt.Sprintf("the guest took nothing for %s", guestTimeout)}
	}
	w.err = err
	return n, err
}

// attribute returns the guest's error if a copy failed because of it, or err as one of the client.
func (w *timeoutWriter) attribute(err error) error {
	if w.err != nil {
		return w.err
	}
	return fmt.Errorf("%w: %w", errClient, err)
}

// closeFrame returns the code and the reason with which a stream is closed.
func closeFrame(what string, cause error) (websocket.StatusCode, string) {
	var closed *closeError
	switch {
	case errors.As(cause, &closed):
		return closed.code, hypervisor.CleanLine(closed.reason, maxReason)
	case errors.Is(cause, errClient):
		return websocket.StatusNormalClosure, ""
	case cause == nil, errors.Is(cause, io.EOF):
		return websocket.StatusNormalClosure, "the guest's end of the " + what + " was closed"
	default:
		return websocket.StatusInternalError, hypervisor.CleanLine("the "+what+" broke: "+cause.Error(), maxReason)
	}
}
