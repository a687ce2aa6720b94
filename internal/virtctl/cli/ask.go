// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// ReadLine asks the user something and reads the answer, byte by byte: what follows the line is for others.
func (c *CLI) ReadLine(question string) (string, error) {
	_, _ = fmt.Fprint(c.ErrOut, question)
	var line strings.Builder
	one := make([]byte, 1)
	for {
		n, err := c.In.Read(one)
		if n == 1 && one[0] == '\n' {
			return strings.TrimSuffix(line.String(), "\r"), nil
		}
		line.Write(one[:n])
		if errors.Is(err, io.EOF) && line.Len() > 0 {
			return line.String(), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// ReadPassword asks for something that is not shown while it is typed.
func (c *CLI) ReadPassword(question string) (string, error) {
	file, isFile := c.In.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return "", errors.New("there is no terminal to ask for a password at")
	}
	_, _ = fmt.Fprint(c.ErrOut, question)
	password, err := term.ReadPassword(int(file.Fd()))
	_, _ = fmt.Fprintln(c.ErrOut)
	return string(password), err
}

// ClusterFlags are the flags with which another run of the program comes to the same cluster as the same user.
func (c *CLI) ClusterFlags() []string {
	var flags []string
	for _, flag := range []struct {
		name  string
		value *string
	}{
		{"kubeconfig", c.Flags.KubeConfig}, {"context", c.Flags.Context}, {"cluster", c.Flags.ClusterName}, {"user", c.Flags.AuthInfoName},
		{"server", c.Flags.APIServer}, {"certificate-authority", c.Flags.CAFile}, {"client-certificate", c.Flags.CertFile},
		{"client-key", c.Flags.KeyFile}, {"tls-server-name", c.Flags.TLSServerName}, {"as", c.Flags.Impersonate},
	} {
		if flag.value != nil && *flag.value != "" {
			flags = append(flags, "--"+flag.name+"="+*flag.value)
		}
	}
	if c.Flags.Insecure != nil && *c.Flags.Insecure {
		flags = append(flags, "--insecure-skip-tls-verify")
	}
	return flags
}
