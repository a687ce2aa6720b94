// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

const (
	// escape ends the console: Ctrl+], as in telnet and KubeVirt. Ctrl+5 sends the same.
	escape = 0x1d
	// interrupt is Ctrl+C. The guest gets it, except while there is no guest to get it.
	interrupt = 0x03
	// readSize is how much is read of the keyboard at once, and waiting how many reads may wait for a slow guest.
	readSize, waiting = 1024, 1024
)

// errEscaped is the end that the user wanted.
var errEscaped = errors.New("the escape sequence was typed")

// session is a terminal at a console, over as many connections as it takes.
type session struct {
	vmi     subresources.Object
	streams genericiooptions.IOStreams
	dial    Dialer
}

func (s *session) run(ctx context.Context) error {
	stream, err := s.dial.Dial(ctx, s.say("\n"))
	if ctx.Err() != nil {
		return nil // Ctrl+C while waiting is no error.
	}
	if err != nil {
		return err
	}
	restore, err := makeRaw(s.streams.In)
	if err != nil {
		return fmt.Errorf("the terminal cannot be used: %w", err)
	}
	defer restore()
	s.say("\r\n")(fmt.Sprintf("Successfully connected to %s console. Press Ctrl+] or Ctrl+5 to exit console.", s.vmi.Name))
	keys := readKeys(s.streams.In)
	for {
		err := s.serve(ctx, stream, keys)
		var closed *subresources.ClosedError
		if !errors.As(err, &closed) || !closed.Temporary() {
			return s.ended(err)
		}
		s.say("\r\n")(fmt.Sprintf("\r\nThe connection ended: %s. Connecting again, Ctrl+] gives up.", closed))
		if stream, err = s.again(ctx, keys); err != nil {
			return s.ended(err)
		}
		s.say("\r\n")(fmt.Sprintf("Connected to %s console again.", s.vmi.Name))
	}
}

// say tells the user something. Lines of a raw terminal need more to end than others.
func (s *session) say(end string) func(string) {
	return func(text string) { _, _ = fmt.Fprint(s.streams.ErrOut, text, end) }
}

// ended is what the command returns when its session is over.
func (s *session) ended(err error) error {
	switch {
	case err == nil, errors.Is(err, errEscaped), errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, subresources.ErrLost):
		return fmt.Errorf("you were disconnected from the console of %s. This has one of these reasons:\r\n"+
			" - the virtual machine was switched off or has moved\r\n"+
			" - another user connected to its console\r\n"+
			" - the network failed\r\n(%w)", s.vmi.Name, err)
	default:
		return fmt.Errorf("you were disconnected from the console of %s: %w", s.vmi.Name, err)
	}
}

// serve connects keyboard and screen with a stream until one of them ends. A nil error is the stream's or the keyboard's end.
func (s *session) serve(ctx context.Context, stream *subresources.Stream, keys <-chan keystrokes) error {
	defer func() { _ = stream.Close() }()
	shown := make(chan error, 1)
	go func() {
		_, err := io.Copy(s.streams.Out, stream)
		shown <- err
	}()
	typed := make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	go func() { typed <- typeInto(stream, keys, done) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-shown:
		return err
	case err := <-typed:
		if err == nil || errors.Is(err, errEscaped) {
			return err
		}
		return <-shown // The reader knows better why the connection ended.
	}
}

// typeInto sends keystrokes until they end.
func typeInto(stream io.Writer, keys <-chan keystrokes, done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		case k, open := <-keys:
			if !open {
				return nil
			}
			if len(k.sent) > 0 {
				if _, err := stream.Write(k.sent); err != nil {
					return err
				}
			}
			if k.escaped {
				return errEscaped
			}
		}
	}
}

// again opens the console once more, unless the user does not want it any longer. What is typed meanwhile is lost.
func (s *session) again(ctx context.Context, keys <-chan keystrokes) (*subresources.Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		stream *subresources.Stream
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		stream, err := s.dial.Dial(ctx, s.say("\r\n"))
		opened <- result{stream, err}
	}()
	for {
		select {
		case r := <-opened:
			return r.stream, r.err
		case k, open := <-keys:
			if !open || k.escaped || bytes.IndexByte(k.sent, interrupt) >= 0 {
				cancel()
				if r := <-opened; r.stream != nil {
					_ = r.stream.Close()
				}
				return nil, errEscaped
			}
		}
	}
}

// keystrokes is a piece of what was typed.
type keystrokes struct {
	sent    []byte
	escaped bool
}

// readKeys reads the keyboard for as long as the program runs: a read of a terminal cannot be taken back.
func readKeys(in io.Reader) <-chan keystrokes {
	keys := make(chan keystrokes, waiting)
	go func() {
		defer close(keys)
		buffer := make([]byte, readSize)
		for {
			n, err := in.Read(buffer)
			before, _, escaped := bytes.Cut(buffer[:n], []byte{escape})
			keys <- keystrokes{sent: bytes.Clone(before), escaped: escaped}
			if err != nil || escaped {
				return
			}
		}
	}()
	return keys
}

// makeRaw hands every key to us, Ctrl+C included. It leaves alone what is not a terminal.
func makeRaw(in io.Reader) (restore func(), err error) {
	file, isFile := in.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return func() {}, nil
	}
	state, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(file.Fd()), state) }, nil
}
