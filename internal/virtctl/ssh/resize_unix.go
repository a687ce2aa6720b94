// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

//go:build unix

package ssh

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/term"
)

// followSize tells the shell whenever the terminal changes its size.
func followSize(s *ssh.Session, terminal int) (stop func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	go func() {
		for range changes {
			if width, height, err := term.GetSize(terminal); err == nil {
				_ = s.WindowChange(height, width)
			}
		}
	}()
	return func() {
		signal.Stop(changes)
		close(changes)
	}
}
