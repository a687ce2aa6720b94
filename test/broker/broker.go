// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package broker serves virt-broker's verbs in the process of a test, over a unix socket as on a node.
package broker

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/broker"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// T is the part of testing.TB, and of Ginkgo's, that Start needs.
type T interface {
	Helper()
	Fatal(arguments ...any)
	Cleanup(do func())
}

// AnyPeer accepts this process as the process of every Pod.
func AnyPeer(*net.UnixConn, string) (*os.File, error) { return os.Open("/proc/self") }

// Start serves the verbs until the test ends, and returns a client. The user of the test is the client's.
func Start(t T, o broker.Options) *brokerclient.Client {
	t.Helper()
	return brokerclient.New(Serve(t, o))
}

// Serve is Start, and returns the path of the socket.
func Serve(t T, o broker.Options) string {
	t.Helper()
	// A socket's path has at most 108 bytes.
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, brokerapi.SocketName)
	stop, err := ServeAt(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return path
}

// ServeAt serves the verbs on a socket until stop is called.
func ServeAt(path string, o broker.Options) (stop func(), err error) {
	if o.ClientUID == 0 {
		o.ClientUID = uint32(os.Geteuid())
	}
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	server := broker.New(o)
	listener, err := broker.Listen(path, os.Geteuid())
	if err != nil {
		server.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(ctx, listener)
	}()
	return func() {
		cancel()
		<-done
		server.Close()
	}, nil
}
