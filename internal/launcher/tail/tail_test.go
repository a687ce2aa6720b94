// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package tail

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// running is a Run under test.
type running struct {
	path    string
	out     io.Reader
	stop    chan os.Signal
	patient chan time.Time
	ended   chan error
}

// start creates the pipe and starts Run.
func start(t *testing.T) *running {
	t.Helper()
	r := prepare(t)
	r.run()
	return r
}

// prepare creates the pipe.
func prepare(t *testing.T) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "tail") // short: the name of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &running{
		path: filepath.Join(dir, "console"),
		stop: make(chan os.Signal), patient: make(chan time.Time), ended: make(chan error, 1),
	}
	if err := Make(r.path); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *running) run() {
	read, write := io.Pipe()
	r.out = read
	go func() {
		err := Run(r.path, write, r.stop, r.patient)
		_ = write.Close()
		r.ended <- err
	}()
}

// writer stands for a process that has the pipe open.
type writer struct {
	pipe     *os.File
	presence *Presence
}

// Close stands for the exit of the process.
func (w *writer) Close() error {
	if w.presence != nil {
		w.presence.Close()
	}
	return w.pipe.Close()
}

// launcher announces itself and opens the pipe as virt-launcher does, which needs no reader.
func (r *running) launcher(t *testing.T) *writer {
	t.Helper()
	presence, err := Announce(r.path)
	if err != nil {
		t.Fatal(err)
	}
	w := r.otherContainer(t)
	w.presence = presence
	return w
}

// otherContainer opens the pipe like a process in another container of the Pod.
func (r *running) otherContainer(t *testing.T) *writer {
	t.Helper()
	file, err := os.OpenFile(r.path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return &writer{pipe: file}
}

func write(t *testing.T, to *writer, text string) {
	t.Helper()
	if _, err := to.pipe.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func (r *running) expect(t *testing.T, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r.out, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}

// expectEnd reads the rest, and waits for Run to return without an error.
func (r *running) expectEnd(t *testing.T, want string) {
	t.Helper()
	rest, err := io.ReadAll(r.out)
	if err != nil || string(rest) != want {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestRunReturnsWithTheLauncherAndLosesNothing(t *testing.T) {
	r := start(t)
	launcher := r.launcher(t)
	write(t, launcher, "boot\n")
	r.expect(t, "boot\n")
	write(t, launcher, "last words\n")
	_ = launcher.Close()
	r.expectEnd(t, "last words\n")
}

func TestRunReturnsWithTheLauncherWhileOthersHaveThePipeOpen(t *testing.T) {
	for name, pipe := range map[string]func(*testing.T, *running) (launcher *writer){
		"since before the launcher": func(t *testing.T, r *running) *writer {
			write(t, r.otherContainer(t), "somebody\n")
			r.expect(t, "somebody\n")
			return r.launcher(t)
		},
		"since after the launcher": func(t *testing.T, r *running) *writer {
			launcher := r.launcher(t)
			r.otherContainer(t)
			return launcher
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			launcher := pipe(t, r)
			write(t, launcher, "boot\n")
			r.expect(t, "boot\n")
			write(t, launcher, "last words\n")
			_ = launcher.Close()
			r.expectEnd(t, "last words\n")
		})
	}
}

// The container was killed, and is restarted when virt-launcher has exited.
func TestRunCopiesWhatALauncherHasLeft(t *testing.T) {
	r := prepare(t)
	somebody, launcher := r.otherContainer(t), r.launcher(t)
	write(t, launcher, "last words\n")
	_ = launcher.Close()
	r.run()
	r.expectEnd(t, "last words\n")
	_ = somebody.Close()
}

func TestRunReturnsAtOnceAfterTheLauncher(t *testing.T) {
	r := prepare(t)
	_ = r.launcher(t).Close()
	r.run()
	if _, err := io.Copy(io.Discard, r.out); err != nil {
		t.Error(err)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

// Another process that writes endlessly delays Run for at most the capacity of the pipe.
func TestRestIsBounded(t *testing.T) {
	r := prepare(t)
	somebody := r.otherContainer(t)
	pipe, err := os.OpenFile(r.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	chunk := make([]byte, 4096)
	written := 0
	endless := func([]byte) {
		for {
			n, err := unix.Write(int(somebody.pipe.Fd()), chunk)
			if err != nil {
				return
			}
			written += n
		}
	}
	if err := unix.SetNonblock(int(somebody.pipe.Fd()), true); err != nil {
		t.Fatal(err)
	}
	endless(nil)
	full := written
	drained := make(chan error, 1)
	drained <- os.ErrDeadlineExceeded
	if err := finish(pipe, each(endless), drained); err != nil {
		t.Error(err)
	}
	if full == 0 || written > 3*full {
		t.Errorf("%d bytes were read from a pipe of %d", written, full)
	}
}

// each calls a function for each write.
type each func([]byte)

func (e each) Write(p []byte) (int, error) { e(p); return len(p), nil }

func TestRunStopsWhileThereIsNoLauncher(t *testing.T) {
	for name, end := range map[string]func(*running){
		"stopped":                  func(r *running) { r.stop <- unix.SIGTERM },
		"the launcher never comes": func(r *running) { r.patient <- time.Time{} },
		"stopped while another process has the pipe open": func(r *running) {
			write(t, r.otherContainer(t), "somebody\n")
			r.expect(t, "somebody\n")
			r.stop <- unix.SIGTERM
		},
		"the launcher never starts while another process has the pipe open": func(r *running) {
			write(t, r.otherContainer(t), "somebody\n")
			r.expect(t, "somebody\n")
			r.patient <- time.Time{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			end(r)
			if err := <-r.ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRunIgnoresARequestToStopWhileTheGuestShutsDown(t *testing.T) {
	r := start(t)
	launcher := r.launcher(t)
	write(t, launcher, "boot\n")
	r.expect(t, "boot\n")
	select {
	case r.stop <- unix.SIGTERM:
		t.Error("Run received the request")
	default:
	}
	write(t, launcher, "shutting down\n")
	r.expect(t, "shutting down\n")
	_ = launcher.Close()
	_, _ = io.Copy(io.Discard, r.out)
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestRunLosesNothingWhenTheLauncherOpensThePipeDuringARequestToStop(t *testing.T) {
	r := prepare(t)
	launcher := r.launcher(t)
	write(t, launcher, "last words\n")
	r.stop = make(chan os.Signal, 1)
	r.stop <- unix.SIGTERM
	r.run()
	r.expect(t, "last words\n")
	_ = launcher.Close()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

// The container was restarted while virt-launcher runs.
func TestRunUsesAPipeThatIsOpen(t *testing.T) {
	r := prepare(t)
	launcher := r.launcher(t)
	write(t, launcher, "while nobody read\n")
	r.run()
	r.expect(t, "while nobody read\n")
	_ = launcher.Close()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestRunIgnoresWriteErrors(t *testing.T) {
	var out bytes.Buffer
	flaky := &failing{left: 1, to: &out}
	if err := drain(&chunks{[]string{"lost", "kept"}}, flaky, make(chan struct{}, 1)); err != nil {
		t.Fatal(err)
	}
	if out.String() != "kept" {
		t.Errorf("got %q", out.String())
	}
}

type failing struct {
	left int
	to   io.Writer
}

func (f *failing) Write(p []byte) (int, error) {
	if f.left > 0 {
		f.left--
		return 0, errors.New("the runtime restarts")
	}
	return f.to.Write(p)
}

type chunks struct{ left []string }

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.left[0])
	c.left = c.left[1:]
	return n, nil
}
