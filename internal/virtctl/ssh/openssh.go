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
	"syscall"
	"time"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// host returns the target as OpenSSH's [user@]host. The host name is KubeVirt's; it has no slash or colon, which scp would interpret.
func (o *options) host(target subresources.Object) string {
	host := strings.Join([]string{shortKind(target), target.Name, target.Namespace}, ".")
	if o.username != "" {
		host = o.username + "@" + host
	}
	return host
}

// shortKind returns vm or vmi.
func shortKind(target subresources.Object) string { return strings.ToLower(target.Kind()) }

// proxyCommand returns the command with which OpenSSH connects to the target: this program's port-forward, to the same cluster.
func (o *options) proxyCommand(c *cli.CLI, program string, target subresources.Object) string {
	words := append([]string{program, "port-forward", "--stdio=true"}, c.ClusterFlags()...)
	if o.vsock {
		words = append(words, "--vsock", "--vsock-tls=false") // SSH itself encrypts the connection.
	}
	words = append(words, shortKind(target)+"/"+target.Name+"/"+target.Namespace, strconv.Itoa(o.port))
	for i, word := range words {
		words[i] = quote(word)
	}
	return strings.Join(words, " ")
}

// quote quotes a word for the shell that runs a ProxyCommand. OpenSSH expands tokens that begin with %.
func quote(word string) string {
	word = strings.ReplaceAll(word, "%", "%%")
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// hostKeyOptions returns the options of OpenSSH for --known-hosts. KubeVirt accepts the flag and ignores it.
func (o *options) hostKeyOptions() []string {
	switch {
	case !o.knownHostsSet:
		return nil
	case o.knownHosts == "":
		return []string{"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=" + os.DevNull}
	default:
		// OpenSSH expects a list of files here, and expands tokens.
		return []string{"-o", `UserKnownHostsFile="` + strings.ReplaceAll(o.knownHosts, "%", "%%") + `"`}
	}
}

// stopTimeout is how long OpenSSH may take to exit after virtctl was interrupted.
const stopTimeout = 5 * time.Second

// runOpenSSH runs ssh or scp. Its exit code becomes virtctl's.
func (o *options) runOpenSSH(ctx context.Context, c *cli.CLI, name string, target subresources.Object, arguments []string) error {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	all := append([]string{"-o", "ProxyCommand=" + o.proxyCommand(c, program, target)}, o.localOptions...)
	all = append(all, o.hostKeyOptions()...) // OpenSSH uses the first value of an option, so the user's own values are first.
	if o.identitySet {
		all = append(all, "-i", o.identity)
	}
	cmd := exec.CommandContext(ctx, name, append(all, arguments...)...) //nolint:gosec // OpenSSH, with the user's arguments
	// OpenSSH restores the terminal when it is terminated by a signal. It could not if it were killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.In, c.Out, c.ErrOut
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return cli.ExitError(exit.ExitCode())
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: %s %s runs the local OpenSSH client, which must be installed", err, c.Program, name)
	default:
		return err
	}
}
