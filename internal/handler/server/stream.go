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

	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// pieceSize is the most that one message to the client has.
	pieceSize = 32 << 10
	// maxMessage is the most that one message from the client may have. It is never in memory as a whole.
	maxMessage = 1 << 20
	// clientPatience is how long a client may take nothing of what waits for it.
	clientPatience = 30 * time.Second
	// guestPatience is how long the guest's side may take nothing of what the client sent.
	guestPatience = 5 * time.Minute
	// StreamBytes is what a stream takes: a buffer for each direction and what is between two reads of the launcher, and as much again for the
	// websocket, TLS and goroutines.
	StreamBytes = 5 * pieceSize
	// maxReason is the length of a close frame's reason. Source: RFC 6455, 5.5 and 5.5.1.
	maxReason = 123
)

// backend is the guest's side of a stream. Closing it ends reads and writes.
type backend struct {
	io.ReadWriteCloser
	// what is how it is called towards people.
	what string
	// datagrams says that each message is one on the other side, and the other way round.
	datagrams bool
}

// checkUpgrade refuses a client that would not understand what it gets, before anything is opened for it.
func checkUpgrade(r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return apierrors.NewBadRequest("this is a stream: ask for it with a websocket")
	}
	var offered []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			offered = append(offered, strings.TrimSpace(name))
		}
	}
	if !slices.Contains(offered, agentapi.StreamProtocol) {
		return apierrors.NewBadRequest("the stream's protocol is " + agentapi.StreamProtocol + ", which the client does not offer")
	}
	return nil
}

// stream serves a client that asks for a stream: it counts it in, opens the guest's side and bridges the two.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, t *target, open func(*session) (backend, error)) error {
	if err := checkUpgrade(r); err != nil {
		return err
	}
	session, err := s.sessions.open(r.Context(), t.vmi.Namespace, t.vmi.UID)
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

// bridge connects a client with a backend until one of them or the session ends. It takes over the connection, so it
// returns nothing, and it closes the backend.
func bridge(w http.ResponseWriter, r *http.Request, s *session, to backend) {
	logger := log.FromContext(r.Context()).WithValues("stream", to.what, "vmi", r.PathValue("namespace")+"/"+r.PathValue("name"))
	defer func() { _ = to.Close() }()
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{agentapi.StreamProtocol}, CompressionMode: websocket.CompressionDisabled,
		// Browsers do not get here: the client has shown its certificate.
		InsecureSkipVerify: true,
	})
	if err != nil {
		// Accept has answered.
		logger.V(3).Info("Cannot upgrade", "error", err.Error())
		return
	}
	socket.SetReadLimit(maxMessage)
	ends := make(chan error, 2)
	var pumps sync.WaitGroup
	pumps.Go(func() { ends <- toClient(s.ctx, socket, to) })
	pumps.Go(func() { ends <- fromClient(s.ctx, socket, to) })
	var cause error
	select {
	case cause = <-ends:
	case <-s.ctx.Done():
	}
	// A stream of a session that ends breaks as well, and not for a reason of its own.
	if s.ctx.Err() != nil {
		cause = context.Cause(s.ctx)
	}
	// A console that another client took over is free for it from here on.
	_ = to.Close()
	code, reason := closeFrame(to.what, cause)
	logger.V(3).Info("A stream ended", "code", code, "reason", reason)
	// The close handshake waits for the client, which may be gone, for seconds.
	_ = socket.Close(code, reason)
	pumps.Wait()
}

// errClient marks what the client's side did.
var errClient = errors.New("client")

// toClient sends what the guest says.
func toClient(ctx context.Context, socket *websocket.Conn, from backend) error {
	size := pieceSize
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

// send sends one message, and cuts the connection with a client that takes none.
func send(ctx context.Context, socket *websocket.Conn, message []byte) error {
	// A session that ends must not tear a message: the close frame comes after it.
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), clientPatience)
	defer cancel()
	err := socket.Write(patient, websocket.MessageBinary, message)
	switch {
	case err == nil:
		return nil
	case patient.Err() != nil:
		return &ending{websocket.StatusPolicyViolation, fmt.Sprintf("the client took nothing for %s", clientPatience)}
	default:
		return fmt.Errorf("%w: %w", errClient, err)
	}
}

// fromClient sends on what the client says.
func fromClient(ctx context.Context, socket *websocket.Conn, to backend) error {
	patient := &patientWriter{to: to}
	buffer := make([]byte, pieceSize)
	if to.datagrams {
		buffer = make([]byte, maxDatagram+1)
	}
	for {
		// Not the session's context: when it ends, coder/websocket cuts the connection before a word can be said.
		_, message, err := socket.Reader(context.WithoutCancel(ctx))
		if err != nil {
			return fmt.Errorf("%w: %w", errClient, err)
		}
		if to.datagrams {
			err = forwardDatagram(patient, message, buffer)
		} else {
			_, err = io.CopyBuffer(patient, struct{ io.Reader }{message}, buffer)
		}
		if err != nil {
			return patient.blame(err)
		}
	}
}

// patientWriter writes to the guest's side, which may take nothing for a while.
type patientWriter struct {
	to  backend
	err error
}

// Write writes all of p.
func (w *patientWriter) Write(p []byte) (int, error) {
	watch := time.AfterFunc(guestPatience, func() { _ = w.to.Close() })
	n, err := w.to.Write(p)
	if !watch.Stop() {
		err = &ending{websocket.StatusPolicyViolation, fmt.Sprintf("the guest took nothing for %s", guestPatience)}
	}
	w.err = err
	return n, err
}

// blame says whether a copy ended because of the guest's side or the client's.
func (w *patientWriter) blame(err error) error {
	if w.err != nil {
		return w.err
	}
	return fmt.Errorf("%w: %w", errClient, err)
}

// closeFrame says to the client why a stream ended.
func closeFrame(what string, cause error) (websocket.StatusCode, string) {
	var told *ending
	switch {
	case errors.As(cause, &told):
		return told.code, hypervisor.CleanLine(told.reason, maxReason)
	case errors.Is(cause, errClient):
		return websocket.StatusNormalClosure, ""
	case cause == nil, errors.Is(cause, io.EOF):
		return websocket.StatusNormalClosure, "the guest's end of the " + what + " was closed"
	default:
		return websocket.StatusInternalError, hypervisor.CleanLine("the "+what+" broke: "+cause.Error(), maxReason)
	}
}
