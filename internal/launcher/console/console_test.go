// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package console

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/time/rate"
)

func copyAll(t *testing.T, input string, limiter *rate.Limiter) string {
	t.Helper()
	var log bytes.Buffer
	if err := Copy(context.Background(), &log, strings.NewReader(input), limiter); err != nil {
		t.Fatal(err)
	}
	return log.String()
}

func TestCopyPassesEverythingWithinTheLimits(t *testing.T) {
	input := "[    0.000000] Linux\r\n\x1b[1mbold\x00\n"
	if got := copyAll(t, input, rate.NewLimiter(0, Burst)); got != input {
		t.Errorf("got %q", got)
	}
}

func TestCopyMarksWhatItDrops(t *testing.T) {
	console := &chunks{[]string{"first\n", strings.Repeat("x", 200), "last\n"}}
	var log bytes.Buffer
	limiter := rate.NewLimiter(0, 100)
	if err := Copy(context.Background(), &log, console, limiter); err != nil {
		t.Fatal(err)
	}
	if got, want := log.String(), "first\n\n[200 bytes of console output dropped]\nlast\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCopyMarksADropAtTheEnd(t *testing.T) {
	if got := copyAll(t, "too much", rate.NewLimiter(0, 1)); got != "\n[8 bytes of console output dropped]\n" {
		t.Errorf("got %q", got)
	}
}

// A guest prints single bytes while the log is slow: nothing is dropped within the limits.
func TestCopyBuffersSmallWritesForASlowLog(t *testing.T) {
	input := strings.Repeat("x", 1000) + "\n"
	release := make(chan struct{})
	log := &slowLog{release: release}
	copied := make(chan error, 1)
	go func() {
		copied <- Copy(context.Background(), log, &signaling{iotest.OneByteReader(strings.NewReader(input)), release},
			rate.NewLimiter(rate.Inf, 0))
	}()
	if err := <-copied; err != nil {
		t.Fatal(err)
	}
	if got := log.String(); got != input {
		t.Errorf("got %q", got)
	}
}

// slowLog blocks until it is released.
type slowLog struct {
	bytes.Buffer
	release <-chan struct{}
}

func (l *slowLog) Write(p []byte) (int, error) {
	<-l.release
	return l.Buffer.Write(p)
}

// signaling closes a channel when everything has been read.
type signaling struct {
	io.Reader
	read chan<- struct{}
}

func (s *signaling) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil {
		close(s.read)
	}
	return n, err
}

// A log that is not read must not block the guest.
func TestCopyDrainsWhenTheLogBlocks(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	never, blocked := io.Pipe()
	defer func() { _ = never.Close() }()
	guest, writer := io.Pipe()
	copied := make(chan error, 1)
	go func() { copied <- Copy(ctx, blocked, guest, rate.NewLimiter(rate.Inf, 0)) }()
	for range 4 * backlogLimit / chunkSize {
		if _, err := writer.Write(make([]byte, chunkSize)); err != nil {
			t.Fatal(err)
		}
	}
	_ = writer.Close()
	cancel()
	if err := <-copied; err != nil {
		t.Error(err)
	}
}

func TestLongLinesAreBroken(t *testing.T) {
	lines := lineBreaker{limit: 4}
	var got bytes.Buffer
	for _, piece := range []string{"ab", "cdef\n", "12345678", "9\n", "wxyz\n"} {
		got.Write(lines.breakLines([]byte(piece)))
	}
	if want := "abcd\nef\n1234\n5678\n9\nwxyz\n"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.fifo")
	for range 2 { // The second call finds the FIFO.
		fifo, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fifo.WriteString("x"); err != nil {
			t.Error(err)
		}
		buf := make([]byte, 8)
		if n, err := fifo.Read(buf); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		_ = fifo.Close()
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(plain); err == nil {
		t.Error("a plain file was taken for a FIFO")
	}
}

// chunks returns one chunk per read.
type chunks struct{ left []string }

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.left[0])
	c.left = c.left[1:]
	return n, nil
}
