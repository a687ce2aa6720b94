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

// Subprotocols of websockets with a plain stream of bytes. KubeVirt supports only Protocol. With ReasonProtocol, a
// close frame means that another client has taken over the stream.
const (
	Protocol       = "plain.kubevirt.io"
	ReasonProtocol = "reason.vireo.io"
)

const (
	// pingInterval keeps proxies and load balancers from closing an idle stream.
	pingInterval = 30 * time.Second
	// closeTimeout limits the exchange of close frames.
	closeTimeout = 2 * time.Second
	// lingerTimeout is how long the server may send nothing after the end of the local input before the stream is
	// closed. Websockets cannot close one direction, so the server does not detect the end of the input.
	lingerTimeout = 10 * time.Second
)

// Stream is a stream of bytes. One goroutine may read while others write.
type Stream struct {
	socket  *websocket.Conn
	ctx     context.Context // ends with the stream
	cancel  context.CancelFunc
	message io.Reader
	once    sync.Once
}

// ClosedError reports that the server closed the stream, and why.
type ClosedError struct {
	Code   websocket.StatusCode
	Reason string
}

// Error implements error.
func (c *ClosedError) Error() string {
	if c.Reason != "" {
		return c.Reason
	}
	return fmt.Sprintf("the server closed the connection (code %d)", c.Code)
}

// Temporary reports whether the server has shut down, so that another one may serve the stream.
func (c *ClosedError) Temporary() bool {
	return c.Code == websocket.StatusGoingAway || c.Code == websocket.StatusServiceRestart
}

// ErrLost reports that the connection ended without a close frame.
var ErrLost = errors.New("the connection was lost")

func newStream(socket *websocket.Conn) *Stream {
	// Messages are not buffered, so their size needs no limit.
	socket.SetReadLimit(-1)
	ctx, cancel := context.WithCancel(context.Background())
	s := &Stream{socket: socket, ctx: ctx, cancel: cancel}
	go s.keepAlive()
	return s
}

func (s *Stream) keepAlive() {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
			ctx, cancel := context.WithTimeout(s.ctx, pingInterval)
			// A missing pong is not an error, because the server may be blocked by its own reader.
			_ = s.socket.Ping(ctx)
			cancel()
		}
	}
}

// Read implements io.Reader. The end of the stream is io.EOF if the server closed it normally, otherwise ClosedError or
// ErrLost.
func (s *Stream) Read(into []byte) (int, error) {
	for {
		if s.message == nil {
			_, message, err := s.socket.Reader(s.ctx)
			if err != nil {
				return 0, translate(err)
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
			err = translate(err)
		}
		return n, err
	}
}

// Write sends bytes as one message.
func (s *Stream) Write(from []byte) (int, error) {
	if err := s.socket.Write(s.ctx, websocket.MessageBinary, from); err != nil {
		return 0, translate(err)
	}
	return len(from), nil
}

// Close closes the stream. It waits for the server's close frame for at most closeTimeout.
func (s *Stream) Close() error {
	s.once.Do(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = s.socket.Close(websocket.StatusNormalClosure, "")
		}()
		select {
		case <-closed:
		case <-time.After(closeTimeout):
		}
		s.cancel()
		_ = s.socket.CloseNow()
	})
	return nil
}

// Join copies between the stream and a local connection until one of them ends.
func (s *Stream) Join(from io.Reader, to io.Writer) error {
	received := make(chan error, 1)
	progress := make(chan struct{}, 1)
	go func() {
		_, err := io.Copy(&watched{to: to, progress: progress}, s)
		received <- err
	}()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(s, from)
		sent <- err
	}()
	select {
	case err := <-received:
		return err
	case err := <-sent:
		if err != nil && !isLocalEnd(err) {
			return err
		}
	}
	return linger(received, progress)
}

// linger waits for the end of the received data, but not longer than lingerTimeout after the last data.
func linger(received <-chan error, progress <-chan struct{}) error {
	for {
		select {
		case err := <-received:
			return err
		case <-progress:
		case <-time.After(lingerTimeout):
			return nil
		}
	}
}

// watched signals each write on progress.
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

// translate turns an error of the websocket into the stream's errors.
func translate(err error) error {
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed) && (closed.Code == websocket.StatusNormalClosure ||
		closed.Code == websocket.StatusNoStatusRcvd) && closed.Reason == "":
		return io.EOF
	case errors.As(err, &closed):
		return &ClosedError{Code: closed.Code, Reason: closed.Reason}
	case errors.Is(err, context.Canceled), errors.Is(err, net.ErrClosed):
		return net.ErrClosed
	default:
		// The error is not wrapped, because it may be an EOF, which would be interpreted as a normal end.
		return fmt.Errorf("%w: %v", ErrLost, err) //nolint:errorlint // see above
	}
}

// Message reads one message of at most limit bytes, for streams in which messages have a meaning. Do not mix it with
// Read.
func (s *Stream) Message(limit int64) ([]byte, error) {
	_, message, err := s.socket.Reader(s.ctx)
	if err != nil {
		return nil, translate(err)
	}
	content, err := io.ReadAll(io.LimitReader(message, limit+1))
	switch {
	case err != nil:
		return nil, translate(err)
	case int64(len(content)) > limit:
		return nil, fmt.Errorf("a message is larger than %d bytes", limit)
	}
	return content, nil
}
