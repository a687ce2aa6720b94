// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package ssh

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// checkHost makes a configuration check host keys against the file of known ones, and ask about those of hosts that are new.
func (o *options) checkHost(c *cli.CLI, name string, config *ssh.ClientConfig) error {
	if o.knownHosts == "" {
		_, _ = fmt.Fprintln(c.ErrOut, "WARNING: skipping hostkey check, provide --known-hosts to fix this")
		config.HostKeyCallback = ssh.InsecureIgnoreHostKey() //nolint:gosec // the user asked for it with --known-hosts=
		return nil
	}
	file := expandHome(o.knownHosts)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	created, err := os.OpenFile(file, os.O_CREATE|os.O_RDONLY, 0o600) //nolint:gosec // the user's file
	if err != nil {
		return err
	}
	_ = created.Close()
	known, err := knownhosts.New(file)
	if err != nil {
		return fmt.Errorf("known hosts: %w", err)
	}
	config.HostKeyAlgorithms = algorithms(known, name)
	config.HostKeyCallback = func(host string, _ net.Addr, key ssh.PublicKey) error {
		// knownhosts takes a network address for the remote side, which a stream does not have.
		err := known(host, &net.TCPAddr{}, key)
		var mismatch *knownhosts.KeyError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &mismatch):
			return err
		case len(mismatch.Want) > 0:
			return changed(host, key, mismatch.Want[0])
		}
		return askAndAdd(c, file, host, key)
	}
	return nil
}

// algorithms are those for which a host's keys are known: a host has several keys, and another one than before is no change. Nil
// for a host that is new.
func algorithms(known ssh.HostKeyCallback, host string) []string {
	var mismatch *knownhosts.KeyError
	if !errors.As(known(host, &net.TCPAddr{}, noKey{}), &mismatch) {
		return nil
	}
	var found []string
	for _, key := range mismatch.Want {
		if kind := key.Key.Type(); kind == ssh.KeyAlgoRSA {
			found = append(found, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		} else {
			found = append(found, kind)
		}
	}
	return found
}

// noKey is a key that no host has: what a file of known hosts says about it are the keys that it has instead.
type noKey struct{}

// Type is none.
func (noKey) Type() string { return "none" }

// Marshal is none's form.
func (noKey) Marshal() []byte { return []byte("none") }

// Verify verifies nothing.
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

// changed is the refusal of a host with another key than before: a new guest of the same name, or somebody in between.
func changed(host string, key ssh.PublicKey, want knownhosts.KnownKey) error {
	return fmt.Errorf("the host key of %s has changed: it is %s now and %s in %s:%d. Either the VM was made anew, or somebody is between you and it. "+
		"If it is new, remove line %d of that file", host, ssh.FingerprintSHA256(key), ssh.FingerprintSHA256(want.Key), want.Filename, want.Line, want.Line)
}

func askAndAdd(c *cli.CLI, file, host string, key ssh.PublicKey) error {
	question := fmt.Sprintf("The authenticity of host '%s' can't be established.\n%s key fingerprint is %s.\nAre you sure you want to continue connecting (yes/no)? ",
		host, key.Type(), ssh.FingerprintSHA256(key))
	for {
		line, err := c.ReadLine(question)
		switch strings.TrimSpace(line) {
		case "yes":
			return addHost(file, host, key)
		case "no":
			return errors.New("the host key was not accepted")
		}
		if err != nil {
			return fmt.Errorf("the host key of %s is not in %s, and nobody says whether it is right: %w", host, file, err)
		}
		question = "Please type 'yes' or 'no': "
	}
}

func addHost(file, host string, key ssh.PublicKey) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the user's file
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, knownhosts.Line([]string{host}, key))
	return errors.Join(err, f.Close())
}
