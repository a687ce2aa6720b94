// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// echo returns each message.
func echo(ctx context.Context, socket *websocket.Conn, _ *http.Request) error {
	for {
		kind, content, err := socket.Read(ctx)
		if err != nil {
			return err
		}
		if err := socket.Write(ctx, kind, content); err != nil {
			return err
		}
	}
}

// forwarding runs port-forward and returns the local addresses that it announced.
func forwarding(t *testing.T, s *virtctltest.Server, ports int, arguments ...string) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	code := make(chan int, 1)
	go func() {
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: writer, ErrOut: writer}
		code <- s.RunStreams(ctx, virtctl.Execute, streams, append([]string{"port-forward"}, arguments...)...)
		_ = writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	var found []string
	for len(found) < ports && lines.Scan() {
		if m := regexp.MustCompile(`Forwarding from (\S+) to`).FindStringSubmatch(lines.Text()); m != nil {
			found = append(found, m[1])
		} else {
			t.Fatalf("port-forward says %q", lines.Text())
		}
	}
	go func() {
		for lines.Scan() {
			t.Log(lines.Text())
		}
	}()
	t.Cleanup(func() {
		cancel()
		expectCode(t, code, 0)
	})
	if len(found) < ports {
		t.Fatalf("announced %v, want %d ports", found, ports)
	}
	return found
}

func TestPortForwardManyConnections(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Stream(vmPath+"portforward/{port}/{protocol}", echo)
	at := forwarding(t, s, 1, "vm/demo", ":22")[0]
	const connections, size = 50, 300 << 10
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
			sent := make([]byte, size)
			_, _ = rand.Read(sent)
			go func() { _, _ = conn.Write(sent) }()
			got := make([]byte, size)
			if _, err := io.ReadFull(conn, got); err != nil {
				t.Error(err)
				return
			}
			if !bytes.Equal(sent, got) {
				t.Error("the bytes that came back are not those that were sent")
			}
		})
	}
	all.Wait()
}

func TestPortForwardUDP(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Stream("/namespaces/other/virtualmachineinstances/{name}/portforward/53/udp", echo)
	at := forwarding(t, s, 2, "vmi/demo/other", "udp/0:53", "tcp/0:80")[0]
	for client := range 3 {
		conn, err := net.Dial("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		// A message larger than one read of a stream must return as one datagram.
		for _, length := range []int{1, 1400, 30000} {
			sent := bytes.Repeat([]byte{byte('a' + client)}, length)
			if _, err := conn.Write(sent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 64<<10)
			n, err := conn.Read(got)
			if err != nil || !bytes.Equal(got[:n], sent) {
				t.Fatalf("client %d got %d bytes and %v, want its own %d", client, n, err, length)
			}
		}
	}
}

// endingReader closes a channel when its end is read.
type endingReader struct {
	io.Reader
	ended chan struct{}
	once  sync.Once
}

func (r *endingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.once.Do(func() { close(r.ended) })
	}
	return n, err
}

func TestPortForwardStdio(t *testing.T) {
	s := virtctltest.NewServer(t)
	input := &endingReader{Reader: strings.NewReader("hello\n"), ended: make(chan struct{})}
	s.Stream(vmPath+"portforward/80/tcp", func(ctx context.Context, socket *websocket.Conn, _ *http.Request) error {
		conn := virtctltest.Conn(ctx, socket)
		request, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return err
		}
		<-input.ended
		go func() { _, _ = io.Copy(io.Discard, conn) }() // reads the pongs
		// The end of the input must not close the connection before the response. Each ping is a round trip in which it is
		// still open; there is no event to wait for.
		for range 20 {
			if err := socket.Ping(ctx); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintf(conn, "you said %s", request)
		return err
	})
	got := s.RunWith(t.Context(), virtctl.Execute, input, "port-forward", "--stdio=true", "vm/demo", "80")
	if want := (virtctltest.Result{Out: "you said hello\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPortForwardRefused(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Subresource(http.MethodGet, vmPath+"portforward/{port}/{protocol}", func(w http.ResponseWriter, _ *http.Request) {
		virtctltest.Refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "VMI is not running")
	})
	expectFailure(t, s.Run(virtctl.Execute, "port-forward", "--stdio", "vm/demo", "80"), "VMI is not running")

	at := forwarding(t, s, 1, "vm/demo", "0:80")[0]
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection that the guest refuses ends with %v, want EOF", err)
	}
}

func TestPortForwardVSOCK(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Stream(vmiPath+"vsock", func(ctx context.Context, socket *websocket.Conn, r *http.Request) error {
		_, err := fmt.Fprint(virtctltest.Conn(ctx, socket), r.URL.Query().Encode())
		return err
	})
	got := s.Run(virtctl.Execute, "port-forward", "--stdio", "--vsock", "--vsock-tls=false", "vm/demo", "99")
	if want := (virtctltest.Result{Out: "port=99&tls=false"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPortForwardArguments(t *testing.T) {
	s := virtctltest.NewServer(t)
	for command, want := range map[string]string{
		"vm/demo":                     "a target and at least one port are needed",
		"node/demo 80":                `unsupported resource type "node"`,
		"vm/ 80":                      "name cannot be empty",
		"vm/demo/ 80":                 "namespace cannot be empty",
		"vm/a/b/c 80":                 "more than two '/'",
		"vm/demo 80:0":                "is not a number between 1 and 65535",
		"vm/demo 80:":                 "a number is missing",
		"vm/demo 99999":               "is not a number",
		"vm/demo http":                "is not a number",
		"vm/demo sctp/80":             `unknown protocol "sctp"`,
		"--stdio vm/demo 80 81":       "only one port supported",
		"vm/demo 80 --address=a.b.c.": "--address",
		"vm/demo udp/80 --vsock":      "leave out udp/",
		"vm/demo 80 udp/80 --vsock":   "leave out udp/",
	} {
		t.Run(command, func(t *testing.T) {
			expectFailure(t, s.Run(virtctl.Execute, append([]string{"port-forward"}, strings.Fields(command)...)...), want)
		})
	}
}
