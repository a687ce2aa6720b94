// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Terminal is a terminal that a test controls.
type Terminal struct {
	t             testing.TB
	keyboard, tty *os.File
	mu            sync.Mutex
	screen        strings.Builder
}

// NewTerminal opens a terminal.
func NewTerminal(t testing.TB) *Terminal {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	term := &Terminal{t: t, keyboard: keyboard, tty: tty}
	go term.watch()
	return term
}

func (term *Terminal) watch() {
	buffer := make([]byte, 4096)
	for {
		n, err := term.keyboard.Read(buffer)
		term.mu.Lock()
		term.screen.Write(buffer[:n])
		term.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Streams returns the terminal's side for a program.
func (term *Terminal) Streams() genericiooptions.IOStreams {
	return genericiooptions.IOStreams{In: term.tty, Out: term.tty, ErrOut: term.tty}
}

// Type sends keys to the program.
func (term *Terminal) Type(keys string) {
	term.t.Helper()
	if _, err := term.keyboard.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// Screen returns the output so far.
func (term *Terminal) Screen() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.screen.String()
}

// Expect waits until the output contains a text.
func (term *Terminal) Expect(text string) {
	term.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(term.Screen(), text) {
		if time.Now().After(deadline) {
			term.t.Fatalf("the terminal does not show %q:\n%s", text, term.Screen())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// IsRaw reports whether the terminal is in raw mode.
func (term *Terminal) IsRaw() bool {
	term.t.Helper()
	state, err := unix.IoctlGetTermios(int(term.tty.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return state.Lflag&(unix.ICANON|unix.ISIG|unix.ECHO) == 0
}
