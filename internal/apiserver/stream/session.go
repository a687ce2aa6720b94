// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

const (
	// stoppingReason is the close reason when virt-api stops. Clients can reconnect to another replica.
	stoppingReason = "virt-api is being stopped or replaced, connect again"
	// maxReason is the maximum length of a close reason, in bytes. RFC 6455, 5.5 and 5.5.1.
	maxReason = 123
	// lastLineTimeout bounds the write of the last line of a console.
	lastLineTimeout = 5 * time.Second
)

// side is one end of a stream.
type side struct {
	name string
	conn *websocket.Conn
}

// ending is why a stream ended, and the close code and reason for its sides.
type ending struct {
	// by is the side that ended it; nil is virt-api.
	by *side
	// broken reports whether that side's connection is unusable and gets no close frame.
	broken bool
	code   websocket.StatusCode
	reason string
}

// initiator returns the name of the side that ended the stream, for the log.
func (e ending) initiator() string {
	if e.by == nil {
		return "virt-api"
	}
	return e.by.name
}

// session is an open stream.
type session struct {
	bridge        *Bridge
	client, agent *side
	buffer        int
	// isText reports whether the client shows the stream to a person as text.
	isText bool
	// ends receives the first ending. Later ones are its consequences and are dropped.
	ends chan ending
}

func (b *Bridge) newSession(client, agent *websocket.Conn, s Stream) *session {
	// Messages of any size are copied piecewise through a buffer.
	client.SetReadLimit(-1)
	agent.SetReadLimit(-1)
	return &session{
		bridge: b, buffer: s.Buffer, isText: s.Kind == Console, ends: make(chan ending, 1),
		client: &side{"the client", client}, agent: &side{"the node agent", agent},
	}
}

// run copies bytes until the stream ends. Its goroutines have finished when it returns.
func (s *session) run() ending {
	var running sync.WaitGroup
	pinging, stopPinging := context.WithCancel(context.Background())
	running.Go(func() { s.ping(pinging, s.client) })
	running.Go(func() { s.ping(pinging, s.agent) })
	var pumps sync.WaitGroup
	pumps.Go(func() { s.pump(s.agent, s.client) })
	pumps.Go(func() { s.pump(s.client, s.agent) })
	running.Go(func() {
		pumps.Wait()
		// Both pumps failed to write, and neither side reported a reason.
		s.end(ending{broken: true, code: websocket.StatusInternalError, reason: "the connection broke"})
	})
	var end ending
	select {
	case end = <-s.ends:
	case <-s.bridge.stopping:
		end = ending{code: websocket.StatusGoingAway, reason: stoppingReason}
	}
	stopPinging()
	running.Go(func() { s.closeClient(end) })
	running.Go(func() { s.close(s.agent, end) })
	running.Wait()
	return end
}

// end ends the stream, unless it is ending already.
func (s *session) end(e ending) {
	select {
	case s.ends <- e:
	default:
	}
}

// closeClient closes the client's side. For KubeVirt's clients a close frame is a successful end, and they expect a
// broken connection when another client has taken over. So they get no close frame then, and for a console the reason
// as its last line.
func (s *session) closeClient(e ending) {
	if e.code != agentapi.CloseTakenOver || s.client.conn.Subprotocol() == agentapi.ReasonProtocol {
		s.close(s.client, e)
		return
	}
	if s.isText {
		ctx, cancel := context.WithTimeout(context.Background(), lastLineTimeout)
		defer cancel()
		_ = s.client.conn.Write(ctx, websocket.MessageBinary, []byte("\r\n"+e.reason+"\r\n"))
	}
	_ = s.client.conn.CloseNow()
}

// close closes a side with a close frame, and waits a few seconds at most for the response. Blocked reads and writes of
// the side fail.
func (s *session) close(to *side, e ending) {
	if e.broken && (e.by == to || e.by == nil) {
		_ = to.conn.CloseNow()
		return
	}
	_ = to.conn.Close(e.code, e.reason) // an error cannot be reported to anyone
}

// pump copies the messages of one side to the other.
func (s *session) pump(to, from *side) {
	buffer := make([]byte, s.buffer)
	for {
		_, message, err := from.conn.Reader(context.Background())
		if err != nil {
			s.end(readEnding(from, err))
			return
		}
		for whole := false; !whole; {
			n, err := io.ReadFull(message, buffer)
			if whole = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && n > 0; err != nil && !whole {
				s.end(readEnding(from, err))
				return
			}
			if n > 0 && !s.write(to, buffer[:n]) {
				return
			}
		}
	}
}

// write reports whether the side accepted the bytes. If it does not read them within WriteTimeout, the stream ends.
func (s *session) write(to *side, piece []byte) bool {
	// The library's own deadline would close the connection without the reason.
	timeout := time.AfterFunc(s.bridge.limits.WriteTimeout, func() {
		s.end(ending{
			by: to, broken: true, code: websocket.StatusPolicyViolation,
			reason: fmt.Sprintf("%s read nothing for %s", to.name, s.bridge.limits.WriteTimeout),
		})
	})
	defer timeout.Stop()
	// An error means that the side was closed. The pump that reads from it reports the reason.
	return to.conn.Write(context.Background(), websocket.MessageBinary, piece) == nil
}

// ping pings a side, and ends the stream if the side does not respond in time.
func (s *session) ping(ctx context.Context, to *side) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.bridge.limits.PingInterval):
		}
		err := func() error {
			// The ping ignores ctx, because canceling it would close the connection without a close frame. It fails when the
			// connection is closed.
			pingCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.bridge.limits.PingTimeout)
			defer cancel()
			return to.conn.Ping(pingCtx)
		}()
		if errors.Is(err, context.DeadlineExceeded) {
			s.end(ending{by: to, broken: true, code: websocket.StatusGoingAway, reason: to.name + " does not respond any more"})
		}
		if err != nil {
			return
		}
	}
}

// readEnding converts the error of reading from a side to an ending.
func readEnding(from *side, err error) ending {
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
		return ending{by: from, broken: true, code: websocket.StatusGoingAway,
			reason: "the connection to " + from.name + " broke"}
	}
	end := ending{by: from, code: closed.Code, reason: truncate(closed.Reason)}
	switch {
	case end.code == websocket.StatusNoStatusRcvd:
		end.code = websocket.StatusNormalClosure
	case !sendable(end.code):
		end.code = websocket.StatusInternalError
	}
	return end
}

// sendable reports whether a close frame may contain a code. RFC 6455, 7.4, and IANA's registry.
func sendable(code websocket.StatusCode) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}

// truncate makes a reason valid UTF-8 of at most maxReason bytes.
func truncate(reason string) string {
	reason = strings.ToValidUTF8(reason, "")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return reason
}
