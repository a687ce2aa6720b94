// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctltest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
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
	// User and Key are who may come in; Password as well, if it is set.
	User     string
	Key      ssh.PublicKey
	Password string
	// Host is its key.
	Host ssh.Signer
	// Exec runs a command, or a shell if it is empty. Its result is the exit code.
	Exec func(command string, terminal bool, channel io.ReadWriter) int
}

// NewKey makes a key and stores its private part in a file.
func NewKey(t testing.TB) (file string, signer ssh.Signer) {
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

// Stream serves a port-forward.
func (d *SSHD) Stream(ctx context.Context, socket *websocket.Conn, _ *http.Request) error {
	d.Serve(Conn(ctx, socket))
	return nil
}

// Serve talks with one client.
func (d *SSHD) Serve(conn net.Conn) {
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if meta.User() == d.User && d.Key != nil && string(key.Marshal()) == string(d.Key.Marshal()) {
				return nil, nil
			}
			return nil, errors.New("this key may not")
		},
	}
	if d.Password != "" {
		config.PasswordCallback = func(meta ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			if meta.User() == d.User && string(password) == d.Password {
				return nil, nil
			}
			return nil, errors.New("wrong password")
		}
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
	terminal := false
	for request := range requests {
		switch request.Type {
		case "pty-req":
			terminal = true
			kind := int(binary.BigEndian.Uint32(request.Payload))
			width := binary.BigEndian.Uint32(request.Payload[4+kind:])
			height := binary.BigEndian.Uint32(request.Payload[8+kind:])
			_ = request.Reply(true, nil)
			_, _ = fmt.Fprintf(channel, "terminal %dx%d\r\n", width, height)
		case "exec", "shell":
			command := ""
			if request.Type == "exec" {
				command = string(request.Payload[4:])
			}
			_ = request.Reply(true, nil)
			go func() {
				code := d.Exec(command, terminal, channel)
				_, _ = channel.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(code)))
				_ = channel.Close()
			}()
		case "window-change":
			_, _ = fmt.Fprintf(channel, "resized %dx%d\r\n", binary.BigEndian.Uint32(request.Payload), binary.BigEndian.Uint32(request.Payload[4:]))
		default:
			_ = request.Reply(false, nil)
		}
	}
}
