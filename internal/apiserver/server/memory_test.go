// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
)

// memoryForConnections is what the connections of clients that have not authenticated may take of virt-api's memory
// limit of 1 GiB.
const memoryForConnections = 512 << 20

// frame returns the first bytes of an HTTP/2 frame of a length, and its payload, which may be shorter.
func frame(kind, flags byte, length int, payload []byte) []byte {
	head := binary.BigEndian.AppendUint32(nil, uint32(length)<<8|uint32(kind))
	return append(append(head, flags, 0, 0, 0, 1), payload...)
}

// Clients that nobody has authenticated, and that do not end their requests, leave memory for others however many
// connections they have.
func TestUnfinishedRequestsTakeLittleMemory(t *testing.T) {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	h2 := func(parts ...[]byte) []byte {
		return slices.Concat(append([][]byte{[]byte(preface), {0, 0, 0, 4, 0, 0, 0, 0, 0}}, parts...)...)
	}
	// Just less than what is refused. A field of HTTP/2 counts 32 bytes besides its name and value. The decoder keeps both
	// as strings.
	const most, perFrame = maxHeaderBytes * 9 / 10, 2000
	fields := bytes.Repeat([]byte{0, 1, 'x', 0}, perFrame)
	headers := [][]byte{frame(1, 0, len(fields), fields)}
	if most < 33*perFrame {
		fields = fields[:4*(most/33)]
		headers = [][]byte{frame(1, 0, len(fields), fields)}
	}
	for sent := 2; sent*33*perFrame < most; sent++ {
		headers = append(headers, frame(9, 0, len(fields), fields))
	}
	for name, tc := range map[string]struct {
		protocol string
		sent     []byte
	}{
		"a header of HTTP/1.1":      {"http/1.1", []byte("GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", most))},
		"headers of HTTP/2":         {"h2", h2(headers...)},
		"a frame that only begins":  {"h2", h2(frame(0, 0, frameBuffer, nil))},
		"a frame that is too large": {"h2", h2(frame(0, 0, 256<<10, nil))},
	} {
		t.Run(name, func(t *testing.T) {
			address := serveTLS(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			const clients = 64
			before := heap()
			for range clients {
				conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{tc.protocol}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				go func() { _, _ = conn.Write(tc.sent) }() // The server may refuse it.
			}
			time.Sleep(3 * time.Second)
			each := (heap() - before) / clients
			t.Logf("%d KiB each, %d MiB of all", each>>10, each*maxConnections>>20)
			if each*maxConnections > memoryForConnections {
				t.Errorf("a connection takes %d KiB, so %d take %d MiB", each>>10, maxConnections, each*maxConnections>>20)
			}
		})
	}
}

func serveTLS(t *testing.T, handler http.Handler) string {
	t.Helper()
	crt, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	server := newHTTPServer(handler,
		&tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
