// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Subprotocols of websockets that carry a plain stream of bytes. KubeVirt knows Protocol alone; a server that knows ReasonProtocol
// says in a close frame why a stream ended that another client took over.
const (
	Protocol       = "plain.kubevirt.io"
	ReasonProtocol = "reason.vireo.io"
)

const (
	// pingEvery keeps proxies and load balancers between here and the cluster from closing a stream on which nobody types.
	pingEvery = 30 * time.Second
	// closeWithin bounds a write of the last words.
	closeWithin = 2 * time.Second
	// lingerFor is how long a stream may still bring something after the local side has said all it had to say. Websockets
	// cannot close one direction alone, so the far side does not learn that nothing more comes.
	lingerFor = 10 * time.Second
)

// Stream is a stream of bytes. One goroutine may read and others write.
type Stream struct {
	socket  *websocket.Conn
	ctx     context.Context // ends with the stream
	cancel  context.CancelFunc
	message io.Reader
	once    sync.Once
}

// ClosedError is the end of a stream that the far side put there, with its reason.
type ClosedError struct {
	Code   websocket.StatusCode
	Reason string
}

// Error makes ClosedError an error.
func (c *ClosedError) Error() string {
	if c.Reason != "" {
		return c.Reason
	}
	return fmt.Sprintf("the server closed the connection (code %d)", c.Code)
}

// Temporary says that the server went away and another may take its place.
func (c *ClosedError) Temporary() bool {
	return c.Code == websocket.StatusGoingAway || c.Code == websocket.StatusServiceRestart
}

// ErrLost is the end of a stream about which nobody said why.
var ErrLost = errors.New("the connection was lost")

func newStream(socket *websocket.Conn) *Stream {
	// Messages are read piece by piece, so their size costs no memory.
	socket.SetReadLimit(-1)
	ctx, cancel := context.WithCancel(context.Background())
	s := &Stream{socket: socket, ctx: ctx, cancel: cancel}
	go s.keepAlive()
	return s
}

func (s *Stream) keepAlive() {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
			ctx, cancel := context.WithTimeout(s.ctx, pingEvery)
			// No answer means nothing: the far side may wait for its own reader.
			_ = s.socket.Ping(ctx)
			cancel()
		}
	}
}

// Read reads what comes. The end that the server means well is io.EOF; others are ClosedError or ErrLost.
func (s *Stream) Read(into []byte) (int, error) {
	for {
		if s.message == nil {
			_, message, err := s.socket.Reader(s.ctx)
			if err != nil {
				return 0, ending(err)
			}
			s.message = message
		}
		n, err := s.message.Read(into)
		if err == io.EOF { //nolint:errorlint // io.Reader's contract: not wrapped
			s.message, err = nil, nil
			if n == 0 {
				continue
			}
		}
		if err != nil {
			err = ending(err)
		}
		return n, err
	}
}

// Write sends bytes as one message.
func (s *Stream) Write(from []byte) (int, error) {
	if err := s.socket.Write(s.ctx, websocket.MessageBinary, from); err != nil {
		return 0, ending(err)
	}
	return len(from), nil
}

// Close ends the stream and tells the far side so, without waiting for its answer.
func (s *Stream) Close() error {
	s.once.Do(func() {
		said := make(chan struct{})
		go func() {
			defer close(said)
			_ = s.socket.Close(websocket.StatusNormalClosure, "")
		}()
		select {
		case <-said:
		case <-time.After(closeWithin):
		}
		s.cancel()
		_ = s.socket.CloseNow()
	})
	return nil
}

// Join copies between the stream and a local connection until one of them ends.
func (s *Stream) Join(from io.Reader, to io.Writer) error {
	fromFar := make(chan error, 1)
	progress := make(chan struct{}, 1)
	go func() {
		_, err := io.Copy(&watched{to: to, progress: progress}, s)
		fromFar <- err
	}()
	toFar := make(chan error, 1)
	go func() {
		_, err := io.Copy(s, from)
		toFar <- err
	}()
	select {
	case err := <-fromFar:
		return err
	case err := <-toFar:
		if err != nil && !isLocalEnd(err) {
			return err
		}
	}
	return s.linger(fromFar, progress)
}

func (s *Stream) linger(fromFar <-chan error, progress <-chan struct{}) error {
	for {
		select {
		case err := <-fromFar:
			return err
		case <-progress:
		case <-time.After(lingerFor):
			return nil
		}
	}
}

// watched tells of each write.
type watched struct {
	to       io.Writer
	progress chan<- struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	select {
	case w.progress <- struct{}{}:
	default:
	}
	return w.to.Write(p)
}

func isLocalEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) }

// ending says why a stream ended.
func ending(err error) error {
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed) && (closed.Code == websocket.StatusNormalClosure || closed.Code == websocket.StatusNoStatusRcvd) && closed.Reason == "":
		return io.EOF
	case errors.As(err, &closed):
		return &ClosedError{Code: closed.Code, Reason: closed.Reason}
	case errors.Is(err, context.Canceled), errors.Is(err, net.ErrClosed):
		return net.ErrClosed
	default:
		// Not wrapped: an EOF in it is no good end.
		return fmt.Errorf("%w: %v", ErrLost, err) //nolint:errorlint // see above
	}
}

// Message reads one message, of at most so many bytes, for streams whose messages have a meaning. It does not go with Read.
func (s *Stream) Message(limit int64) ([]byte, error) {
	_, message, err := s.socket.Reader(s.ctx)
	if err != nil {
		return nil, ending(err)
	}
	content, err := io.ReadAll(io.LimitReader(message, limit+1))
	switch {
	case err != nil:
		return nil, ending(err)
	case int64(len(content)) > limit:
		return nil, fmt.Errorf("a message is larger than %d bytes", limit)
	}
	return content, nil
}
