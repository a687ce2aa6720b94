// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package ssh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// localHost is a target as OpenSSH's host: KubeVirt's name for it, without characters that scp takes for something else.
func (o *options) localHost(target subresources.Object) string {
	host := strings.Join([]string{shortKind(target), target.Name, target.Namespace}, ".")
	if o.username != "" {
		host = o.username + "@" + host
	}
	return host
}

// proxyCommand is how OpenSSH reaches a target through this program, with the flags that lead to the same cluster.
func (o *options) proxyCommand(c *cli.CLI, program string, target subresources.Object) string {
	words := append([]string{program, "port-forward", "--stdio=true"}, c.ClusterFlags()...)
	if o.vsock {
		words = append(words, "--vsock", "--vsock-tls=false") // SSH encrypts itself.
	}
	words = append(words, shortKind(target)+"/"+target.Name+"/"+target.Namespace, strconv.Itoa(o.port))
	for i, word := range words {
		words[i] = quoted(word)
	}
	return strings.Join(words, " ")
}

// quoted is a word for the shell to which OpenSSH gives a ProxyCommand, in which % begins a token of OpenSSH's.
func quoted(word string) string {
	word = strings.ReplaceAll(word, "%", "%%")
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// runLocal runs OpenSSH's ssh or scp. Its exit code becomes this program's.
func (o *options) runLocal(ctx context.Context, c *cli.CLI, name string, target subresources.Object, arguments []string) error {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	all := []string{"-o", "ProxyCommand=" + o.proxyCommand(c, program, target)}
	all = append(all, o.localOptions...)
	if o.identityIs {
		all = append(all, "-i", o.identity)
	}
	cmd := exec.CommandContext(ctx, name, append(all, arguments...)...) //nolint:gosec // OpenSSH, with the user's arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.In, c.Out, c.ErrOut
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return cli.ExitError(exit.ExitCode())
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: install OpenSSH, or leave out --local-ssh and --local-ssh-opts", err)
	default:
		return err
	}
}
