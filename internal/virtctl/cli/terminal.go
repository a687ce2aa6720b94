// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"
)

// Terminal returns the file descriptor of a stream, and whether it is a terminal.
func Terminal(stream any) (fd int, isTerminal bool) {
	file, isFile := stream.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	return int(file.Fd()), true
}

// MakeRaw puts the input into raw mode, in which the program reads every key, including Ctrl+C. restore ends that mode. MakeRaw does not
// change an input that is not a terminal.
func (c *CLI) MakeRaw() (restore func(), err error) {
	fd, isTerminal := Terminal(c.In)
	if !isTerminal {
		return func() {}, nil
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("the terminal cannot be put into raw mode: %w", err)
	}
	return func() { _ = term.Restore(fd, state) }, nil
}

// ReadPassword prompts for a password at the terminal, without echo.
func (c *CLI) ReadPassword(prompt string) (string, error) {
	fd, isTerminal := Terminal(c.In)
	if !isTerminal {
		return "", errors.New("there is no terminal to read a password from")
	}
	_, _ = fmt.Fprint(c.ErrOut, prompt)
	password, err := term.ReadPassword(fd)
	_, _ = fmt.Fprintln(c.ErrOut)
	return string(password), err
}
