// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package qemutls_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
)

const address = "10.244.1.7"

func pair(t *testing.T, uid string, now time.Time) qemutls.Pair {
	t.Helper()
	made, err := qemutls.New(types.UID("uid-"+uid), netip.MustParseAddr(address), now)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// handshake returns the results of a TLS handshake on the target's and on the source's side.
func handshake(t *testing.T, server, client qemutls.Files, name string) (atServer, atClient error) {
	t.Helper()
	config := func(f qemutls.Files) *tls.Config {
		certificate, err := tls.X509KeyPair(f.Certificate, f.Key)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(f.CA) {
			t.Fatal("the authority's certificate cannot be read")
		}
		return &tls.Config{
			Certificates: []tls.Certificate{certificate}, RootCAs: roots, ClientCAs: roots,
			ClientAuth: tls.RequireAndVerifyClientCert, ServerName: name, MinVersion: tls.VersionTLS12,
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	done := make(chan error, 1)
	go func() {
		a, err := listener.Accept()
		if err == nil {
			err = tls.Server(a, config(server)).HandshakeContext(t.Context())
			_ = a.Close()
		}
		done <- err
	}()
	b, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(b, config(client))
	atClient = conn.HandshakeContext(t.Context())
	if atClient == nil {
		// With TLS 1.3 the client has finished before the server verifies its certificate.
		_, _ = conn.Read(make([]byte, 1))
	}
	_ = b.Close()
	return <-done, atClient
}

func TestBothSidesTrustEachOther(t *testing.T) {
	made := pair(t, "a", time.Now())
	for _, name := range []string{qemutls.Name("uid-a"), address} {
		if atServer, atClient := handshake(t, made.Server, made.Client, name); atServer != nil || atClient != nil {
			t.Errorf("%s: server: %v, client: %v", name, atServer, atClient)
		}
	}
}

func TestOthersAreNotTrusted(t *testing.T) {
	now := time.Now()
	made, other := pair(t, "a", now), pair(t, "b", now)
	stranger := other.Client
	stranger.CA = made.Client.CA
	impostor := other.Server
	impostor.CA = made.Server.CA
	swapped := made.Server
	swapped.CA = made.Client.CA
	old := pair(t, "a", now.Add(-30*time.Hour))
	for name, c := range map[string]struct{ server, client qemutls.Files }{
		"a source of another migration": {made.Server, stranger},
		"a target of another migration": {impostor, made.Client},
		"a target that acts as source":  {made.Server, swapped},
		"a source that acts as target":  {made.Client, made.Client},
		"a migration of yesterday":      {old.Server, old.Client},
	} {
		if atServer, atClient := handshake(t, c.server, c.client, qemutls.Name("uid-a")); atServer == nil && atClient == nil {
			t.Errorf("%s is trusted", name)
		}
	}
	if _, atClient := handshake(t, made.Server, made.Client, qemutls.Name("uid-b")); atClient == nil {
		t.Error("a target is trusted under the name of another")
	}
}

func TestFilesCanBeSent(t *testing.T) {
	made := pair(t, "a", time.Now())
	text, err := json.Marshal(made.Client)
	if err != nil {
		t.Fatal(err)
	}
	var got qemutls.Files
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if atServer, atClient := handshake(t, made.Server, got, address); atServer != nil || atClient != nil {
		t.Errorf("server: %v, client: %v", atServer, atClient)
	}
	if got.Server || !made.Server.Server {
		t.Error("the sides are not distinguished")
	}
}
