// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

const (
	// escape quits: Ctrl+], as in telnet and KubeVirt. Ctrl+5 sends the same byte.
	escape = 0x1d
	// interrupt is Ctrl+C. It is sent to the guest, or quits while there is no connection.
	interrupt = 0x03
	// readSize is the size of one read of the keyboard, and queueLength how many of them may wait for a slow guest.
	readSize, queueLength = 1024, 1024
)

// errEscaped reports that the user quit.
var errEscaped = errors.New("the escape sequence was typed")

// session connects a terminal with a console. It reconnects when virt-api shuts down.
type session struct {
	cli  *cli.CLI
	vmi  subresources.Object
	dial Dialer
}

func (s *session) run(ctx context.Context) error {
	stream, err := s.dial.Dial(ctx, s.printer("\n"))
	if ctx.Err() != nil {
		return nil // Ctrl+C while waiting is not an error.
	}
	if err != nil {
		return err
	}
	restore, err := s.cli.MakeRaw()
	if err != nil {
		return err
	}
	defer restore()
	s.printer("\r\n")(fmt.Sprintf("Successfully connected to %s console. Press Ctrl+] or Ctrl+5 to exit console.", s.vmi.Name))
	keys := readKeys(s.cli.In)
	for {
		err := s.serve(ctx, stream, keys)
		var closed *subresources.ClosedError
		if !errors.As(err, &closed) || !closed.Temporary() {
			return s.result(err)
		}
		s.printer("\r\n")(fmt.Sprintf("\r\nThe connection ended: %s. Reconnecting, Ctrl+] quits.", closed))
		if stream, err = s.reconnect(ctx, keys); err != nil {
			return s.result(err)
		}
		s.printer("\r\n")(fmt.Sprintf("Reconnected to %s console.", s.vmi.Name))
	}
}

// printer returns a function that prints lines with this end. A raw terminal needs a different one.
func (s *session) printer(end string) func(string) {
	return func(text string) { _, _ = fmt.Fprint(s.cli.ErrOut, text, end) }
}

// result returns the command's error for the end of the session.
func (s *session) result(err error) error {
	switch {
	case err == nil, errors.Is(err, errEscaped), errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, subresources.ErrLost):
		return fmt.Errorf("you were disconnected from the console of %s. This has one of these reasons:\r\n"+
			" - the virtual machine was powered off or migrated\r\n"+
			" - another user connected to its console\r\n"+
			" - the network failed\r\n(%w)", s.vmi.Name, err)
	default:
		return fmt.Errorf("you were disconnected from the console of %s: %w", s.vmi.Name, err)
	}
}

// serve connects the terminal with the stream until one of them ends. It returns nil for the end of the stream or the keyboard.
func (s *session) serve(ctx context.Context, stream *subresources.Stream, keys <-chan keystrokes) error {
	defer func() { _ = stream.Close() }()
	received := make(chan error, 1)
	go func() {
		_, err := io.Copy(s.cli.Out, stream)
		received <- err
	}()
	sent := make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	go func() { sent <- sendKeys(stream, keys, done) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-received:
		return err
	case err := <-sent:
		if err == nil || errors.Is(err, errEscaped) {
			return err
		}
		return <-received // This error is more precise about why the connection ended.
	}
}

// sendKeys sends keystrokes until the keyboard ends, the user quits or done is closed.
func sendKeys(stream io.Writer, keys <-chan keystrokes, done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		case k, open := <-keys:
			if !open {
				return nil
			}
			if len(k.bytes) > 0 {
				if _, err := stream.Write(k.bytes); err != nil {
					return err
				}
			}
			if k.escaped {
				return errEscaped
			}
		}
	}
}

// reconnect opens the console again, unless the user quits. Keystrokes are discarded meanwhile.
func (s *session) reconnect(ctx context.Context, keys <-chan keystrokes) (*subresources.Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		stream *subresources.Stream
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		stream, err := s.dial.Dial(ctx, s.printer("\r\n"))
		opened <- result{stream, err}
	}()
	for {
		select {
		case r := <-opened:
			return r.stream, r.err
		case k, open := <-keys:
			if !open || k.escaped || bytes.IndexByte(k.bytes, interrupt) >= 0 {
				cancel()
				if r := <-opened; r.stream != nil {
					_ = r.stream.Close()
				}
				return nil, errEscaped
			}
		}
	}
}

// keystrokes is the result of one read of the keyboard.
type keystrokes struct {
	// bytes are the bytes before the escape sequence.
	bytes   []byte
	escaped bool
}

// readKeys reads the keyboard until the program ends: a read of a terminal cannot be canceled.
func readKeys(in io.Reader) <-chan keystrokes {
	keys := make(chan keystrokes, queueLength)
	go func() {
		defer close(keys)
		buffer := make([]byte, readSize)
		for {
			n, err := in.Read(buffer)
			before, _, escaped := bytes.Cut(buffer[:n], []byte{escape})
			keys <- keystrokes{bytes: bytes.Clone(before), escaped: escaped}
			if err != nil || escaped {
				return
			}
		}
	}()
	return keys
}
