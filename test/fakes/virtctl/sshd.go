// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"
)

// SSHD is a guest's SSH server.
type SSHD struct {
	// User may log in with Key.
	User string
	Key  ssh.PublicKey
	// Host is the server's own key.
	Host ssh.Signer
	// Exec runs a command and returns its exit code.
	Exec func(command string, channel io.ReadWriter) int
}

// NewSSHKey generates a key and stores its private half in a file.
func NewSSHKey(t testing.TB) (file string, signer ssh.Signer) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	if signer, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	return file, signer
}

// Stream serves a port-forward stream to the guest's SSH port.
func (d *SSHD) Stream(ctx context.Context, socket *websocket.Conn, _ *http.Request) error {
	d.serve(Conn(ctx, socket))
	return nil
}

// serve serves one client until it disconnects.
func (d *SSHD) serve(conn net.Conn) {
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if meta.User() == d.User && string(key.Marshal()) == string(d.Key.Marshal()) {
				return nil, nil
			}
			return nil, errors.New("wrong user or key")
		},
	}
	config.AddHostKey(d.Host)
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for open := range channels {
		channel, requests, err := open.Accept()
		if err != nil {
			return
		}
		go d.session(channel, requests)
	}
}

func (d *SSHD) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	for request := range requests {
		if request.Type != "exec" {
			_ = request.Reply(false, nil)
			continue
		}
		command := string(request.Payload[4:]) // after its length
		_ = request.Reply(true, nil)
		go func() {
			code := d.Exec(command, channel)
			_, _ = channel.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(code)))
			_ = channel.Close()
		}()
	}
}
