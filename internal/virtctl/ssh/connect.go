// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package ssh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/portforward"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// passwordTries is how often a password is asked for, as OpenSSH does.
const passwordTries = 3

// connect logs in.
func (o *options) connect(ctx context.Context, c *cli.CLI, target subresources.Object) (*ssh.Client, error) {
	if o.username == "" {
		return nil, errors.New("a user is needed: name it as in user@vm/myvm, or with --username")
	}
	name := o.hostName(target)
	config := &ssh.ClientConfig{User: o.username}
	if err := o.checkHost(c, name, config); err != nil {
		return nil, err
	}
	methods, closeAgent, err := o.methods(c)
	if err != nil {
		return nil, err
	}
	defer closeAgent()
	config.Auth = methods
	api, err := c.Subresources()
	if err != nil {
		return nil, err
	}
	stream, err := (&portforward.Dialer{API: api, Target: target, VSOCK: o.vsock, PlainVSOCK: true}).Dial(ctx, "tcp", o.port)
	if err != nil {
		return nil, fmt.Errorf("can't access %s %s: %w", target.Kind(), target.Name, err)
	}
	transport, channels, requests, err := ssh.NewClientConn(&conn{Stream: stream, name: name}, name, config)
	if err != nil {
		_ = stream.Close()
		return nil, fmt.Errorf("%s does not let %s in: %w", name, o.username, err)
	}
	context.AfterFunc(ctx, func() { _ = stream.Close() })
	return ssh.NewClient(transport, channels, requests), nil
}

// methods are the ways to prove who one is, in the order in which they are tried. SSH tries each kind once, so all keys are one.
func (o *options) methods(c *cli.CLI) ([]ssh.AuthMethod, func(), error) {
	var keys []func() ([]ssh.Signer, error)
	closeAgent := func() {}
	if o.identityIs {
		// A key that the user names must be there.
		if _, err := os.Stat(expandHome(o.identity)); err != nil {
			return nil, nil, fmt.Errorf("--identity-file: %w", err)
		}
		keys = append(keys, func() ([]ssh.Signer, error) { return readKey(c, expandHome(o.identity)) })
	}
	if socket := os.Getenv("SSH_AUTH_SOCK"); socket != "" {
		if connection, err := net.Dial("unix", socket); err == nil { //nolint:noctx,gosec // the socket that the user's environment names
			closeAgent = func() { _ = connection.Close() }
			keys = append(keys, agent.NewClient(connection).Signers)
		}
	}
	if !o.identityIs {
		for _, name := range defaultKeys {
			if file := homeFile(name); fileExists(file) {
				keys = append(keys, func() ([]ssh.Signer, error) { return readKey(c, file) })
			}
		}
	}
	password := func() (string, error) { return c.ReadPassword(o.username + "'s password: ") }
	return []ssh.AuthMethod{
		ssh.PublicKeysCallback(func() ([]ssh.Signer, error) { return signers(c, keys), nil }),
		ssh.RetryableAuthMethod(ssh.PasswordCallback(password), passwordTries),
		ssh.RetryableAuthMethod(ssh.KeyboardInteractive(func(_, instruction string, questions []string, echos []bool) ([]string, error) {
			return answer(c, instruction, questions, echos)
		}), passwordTries),
	}, closeAgent, nil
}

// signers are all keys that can be used. One that cannot is told and passed over: another may do.
func signers(c *cli.CLI, keys []func() ([]ssh.Signer, error)) []ssh.Signer {
	var all []ssh.Signer
	for _, get := range keys {
		some, err := get()
		if err != nil {
			_, _ = fmt.Fprintln(c.ErrOut, cli.Plain(err.Error()))
			continue
		}
		all = append(all, some...)
	}
	return all
}

func readKey(c *cli.CLI, file string) ([]ssh.Signer, error) {
	content, err := os.ReadFile(file) //nolint:gosec // the user's key
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(content)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		var passphrase string
		if passphrase, err = c.ReadPassword(fmt.Sprintf("Enter passphrase for key '%s': ", file)); err != nil {
			return nil, fmt.Errorf("key %s: %w", file, err)
		}
		signer, err = ssh.ParsePrivateKeyWithPassphrase(content, []byte(passphrase))
	}
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	return []ssh.Signer{signer}, nil
}

// answer asks the user what the guest asks.
func answer(c *cli.CLI, instruction string, questions []string, echos []bool) ([]string, error) {
	if instruction != "" {
		_, _ = fmt.Fprintln(c.ErrOut, cli.Plain(instruction))
	}
	answers := make([]string, len(questions))
	for i, question := range questions {
		ask := c.ReadPassword
		if echos[i] {
			ask = c.ReadLine
		}
		var err error
		if answers[i], err = ask(cli.Plain(question)); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func expandHome(file string) string {
	if rest, found := strings.CutPrefix(file, "~/"); found {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return file
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return file != "" && !errors.Is(err, fs.ErrNotExist)
}

// conn is a stream as SSH wants it.
type conn struct {
	*subresources.Stream
	name string
}

type streamAddr string

// Network is a name for people.
func (streamAddr) Network() string { return "websocket" }

// String is the target.
func (a streamAddr) String() string { return string(a) }

// LocalAddr is this program.
func (*conn) LocalAddr() net.Addr { return streamAddr("virtctl") }

// RemoteAddr is the target.
func (c *conn) RemoteAddr() net.Addr { return streamAddr(c.name) }

// SetDeadline does nothing: contexts bound the stream.
func (*conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing.
func (*conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (*conn) SetWriteDeadline(time.Time) error { return nil }
