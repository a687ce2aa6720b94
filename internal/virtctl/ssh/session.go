// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package ssh

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/crypto/ssh"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Size of a terminal whose size is not known.
const columns, rows = 80, 24

// session runs a command, or a shell at this terminal. The far exit code becomes this program's.
func session(client *ssh.Client, streams genericiooptions.IOStreams, command string) error {
	s, err := client.NewSession()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	s.Stdout, s.Stderr = streams.Out, streams.ErrOut
	// A pipe of our own: the library would wait for a read of the keyboard that nobody needs any more.
	keyboard, err := s.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(keyboard, streams.In)
		_ = keyboard.Close()
	}()
	if command != "" {
		return exitCode(s.Run(command))
	}
	if file, isFile := streams.In.(*os.File); isFile && term.IsTerminal(int(file.Fd())) {
		restore, err := requestTerminal(s, int(file.Fd()))
		if err != nil {
			return err
		}
		defer restore()
	}
	if err := s.Shell(); err != nil {
		return err
	}
	return exitCode(s.Wait())
}

// requestTerminal gives the shell a terminal of this one's kind and size, and hands it every key.
func requestTerminal(s *ssh.Session, terminal int) (restore func(), err error) {
	width, height, err := term.GetSize(terminal)
	if err != nil || width == 0 || height == 0 {
		width, height = columns, rows
	}
	kind := os.Getenv("TERM")
	if kind == "" {
		kind = "xterm"
	}
	modes := ssh.TerminalModes{ssh.ECHO: 1, ssh.TTY_OP_ISPEED: 14400, ssh.TTY_OP_OSPEED: 14400}
	if err := s.RequestPty(kind, height, width, modes); err != nil {
		return nil, fmt.Errorf("the guest gives no terminal: %w", err)
	}
	state, err := term.MakeRaw(terminal)
	if err != nil {
		return nil, err
	}
	stop := followSize(s, terminal)
	return func() {
		stop()
		_ = term.Restore(terminal, state)
	}, nil
}

// exitCode is what a session's end means for this program.
func exitCode(err error) error {
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case errors.As(err, &exit) && exit.Signal() != "":
		return fmt.Errorf("the command was ended by signal %s", exit.Signal())
	case errors.As(err, &exit):
		return cli.ExitError(exit.ExitStatus())
	case errors.As(err, &missing):
		return errors.New("the connection ended before the command did")
	}
	return err
}
