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

	"github.com/vireo-project/vireo/internal/agentapi"
)

const (
	// goodbye is what people are told when virt-api is stopped. There is another replica, or will be.
	goodbye = "virt-api is being stopped or replaced, connect again"
	// maxReason is how long a close reason may be. RFC 6455, 5.5 and 5.5.1.
	maxReason = 123
	// lastWords is how long a client may take to take the last line of its stream.
	lastWords = 5 * time.Second
)

// side is one end of a stream.
type side struct {
	name string
	conn *websocket.Conn
}

// ending is how a stream ended, and what the sides are told.
type ending struct {
	// by is the side that ended it; nil is virt-api.
	by *side
	// broken says that there is nobody on that side to say goodbye to.
	broken bool
	code   websocket.StatusCode
	reason string
}

// who ended it, in words.
func (e ending) who() string {
	if e.by == nil {
		return "virt-api"
	}
	return e.by.name
}

// session is a stream that runs.
type session struct {
	bridge        *Bridge
	client, agent *side
	buffer        int
	// words says that a person reads the stream as it is.
	words bool
	// ends takes the first ending; those that follow are its consequences.
	ends chan ending
}

func (b *Bridge) newSession(client, agent *websocket.Conn, s Stream) *session {
	// Messages are carried in pieces through a buffer: their size is no matter.
	client.SetReadLimit(-1)
	agent.SetReadLimit(-1)
	return &session{
		bridge: b, buffer: s.Buffer, words: s.Kind == Console, ends: make(chan ending, 1),
		client: &side{"the client", client}, agent: &side{"the node agent", agent},
	}
}

// run carries bytes until a side ends. All that it starts has ended when it returns.
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
		// Both found the side that they write to closed, and nobody said why.
		s.end(ending{broken: true, code: websocket.StatusInternalError, reason: "the connection broke"})
	})
	var end ending
	select {
	case end = <-s.ends:
	case <-s.bridge.stopping:
		end = ending{code: websocket.StatusGoingAway, reason: goodbye}
	}
	stopPinging()
	running.Go(func() { s.closeClient(end) })
	running.Go(func() { s.close(s.agent, end) })
	running.Wait()
	return end
}

// end says why the stream ends, if nobody did before.
func (s *session) end(e ending) {
	select {
	case s.ends <- e:
	default:
	}
}

// closeClient says goodbye to the client. One that was made for KubeVirt takes a close frame for an end that is well, and waits for a
// connection that breaks when another client has taken over: it gets the reason as the last line of a console, and no close frame.
func (s *session) closeClient(e ending) {
	if e.code != agentapi.CloseTakenOver || s.client.conn.Subprotocol() == agentapi.ReasonProtocol {
		s.close(s.client, e)
		return
	}
	if s.words {
		ctx, cancel := context.WithTimeout(context.Background(), lastWords)
		defer cancel()
		_ = s.client.conn.Write(ctx, websocket.MessageBinary, []byte("\r\n"+e.reason+"\r\n"))
	}
	_ = s.client.conn.CloseNow()
}

// close says goodbye to a side, for at most some seconds. That also ends whoever reads from it or writes to it.
func (s *session) close(to *side, e ending) {
	if e.broken && (e.by == to || e.by == nil) {
		_ = to.conn.CloseNow()
		return
	}
	_ = to.conn.Close(e.code, e.reason) // there is nobody left to tell of an error
}

// pump carries what one side sends to the other.
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

// write is false when the side takes nothing more.
func (s *session) write(to *side, piece []byte) bool {
	// Not a deadline of the library's, which would close the connection before anybody could say why.
	late := time.AfterFunc(s.bridge.limits.WriteTimeout, func() {
		s.end(ending{
			by: to, broken: true, code: websocket.StatusPolicyViolation,
			reason: fmt.Sprintf("%s read nothing for %s", to.name, s.bridge.limits.WriteTimeout),
		})
	})
	defer late.Stop()
	// An error is that the side was closed. Why, its reader knows.
	return to.conn.Write(context.Background(), websocket.MessageBinary, piece) == nil
}

// ping ends the stream when a side no longer answers.
func (s *session) ping(ctx context.Context, to *side) {
	for sleep(ctx, s.bridge.limits.PingInterval) {
		err := func() error {
			// A ping that is cut short would close the connection: it ends when that is closed.
			waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.bridge.limits.PingTimeout)
			defer cancel()
			return to.conn.Ping(waiting)
		}()
		if errors.Is(err, context.DeadlineExceeded) {
			s.end(ending{by: to, broken: true, code: websocket.StatusGoingAway, reason: to.name + " does not answer any more"})
		}
		if err != nil {
			return
		}
	}
}

// readEnding tells from the error of a side's reader how that side ended.
func readEnding(from *side, err error) ending {
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
		return ending{by: from, broken: true, code: websocket.StatusGoingAway, reason: "the connection to " + from.name + " broke"}
	}
	end := ending{by: from, code: closed.Code, reason: cut(closed.Reason)}
	switch {
	case end.code == websocket.StatusNoStatusRcvd:
		end.code = websocket.StatusNormalClosure
	case !sendable(end.code):
		end.code = websocket.StatusInternalError
	}
	return end
}

// sendable says that a code may be in a close frame. RFC 6455, 7.4, and IANA's registry.
func sendable(code websocket.StatusCode) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}

// cut makes a reason fit a close frame.
func cut(reason string) string {
	reason = strings.ToValidUTF8(reason, "")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return reason
}
