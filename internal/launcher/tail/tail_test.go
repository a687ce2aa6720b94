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

// start makes the pipe and runs the tail of it.
func start(t *testing.T) *running {
	t.Helper()
	r := prepare(t)
	r.run()
	return r
}

// prepare makes the pipe, of which nothing runs yet.
func prepare(t *testing.T) *running {
	t.Helper()
	r := &running{
		path: filepath.Join(t.TempDir(), "console"),
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

// launcher opens the pipe as virt-launcher does, which needs no reader.
func (r *running) launcher(t *testing.T) *os.File {
	t.Helper()
	file, err := os.OpenFile(r.path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func write(t *testing.T, file *os.File, text string) {
	t.Helper()
	if _, err := file.WriteString(text); err != nil {
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

func TestRunEndsWithTheLauncherAndLosesNothing(t *testing.T) {
	r := start(t)
	launcher := r.launcher(t)
	write(t, launcher, "boot\n")
	r.expect(t, "boot\n")
	write(t, launcher, "last words\n")
	_ = launcher.Close()
	rest, err := io.ReadAll(r.out)
	if err != nil || string(rest) != "last words\n" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestRunStopsWhileThereIsNoLauncher(t *testing.T) {
	for name, end := range map[string]func(*running){
		"asked to stop":            func(r *running) { r.stop <- unix.SIGTERM },
		"the launcher never comes": func(r *running) { r.patient <- time.Time{} },
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

func TestRunOutlivesARequestToStopWhileTheGuestShutsDown(t *testing.T) {
	r := start(t)
	launcher := r.launcher(t)
	write(t, launcher, "boot\n")
	r.expect(t, "boot\n")
	select {
	case r.stop <- unix.SIGTERM:
		t.Error("the request was taken")
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

func TestRunLosesNothingWhenItIsAskedToStopAsTheLauncherOpensThePipe(t *testing.T) {
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

// A container that was started again finds the launcher in the middle of its work.
func TestRunTakesUpAPipeThatIsOpen(t *testing.T) {
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

func TestRunSurvivesALogThatIsGone(t *testing.T) {
	var out bytes.Buffer
	flaky := &failing{left: 1, to: &out}
	if err := drain(&chunks{[]string{"lost", "kept"}}, flaky); err != nil {
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
