// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package stream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

var instance = types.NamespacedName{Namespace: "ns", Name: "vm"}

// timeout is long enough for a loaded machine.
const timeout = time.Minute

// fixture is a bridge with an agent that runs a function for each stream.
type fixture struct {
	t        *testing.T
	url      string
	stopping chan struct{}
	serving  sync.WaitGroup
	// errors receives the errors that Serve returned.
	errors chan error
}

func newFixture(t *testing.T, limits Limits, agent func(context.Context, *websocket.Conn)) *fixture {
	t.Helper()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		conn.SetReadLimit(-1)
		agent(r.Context(), conn)
	}))
	t.Cleanup(node.Close)
	s := &fixture{t: t, stopping: make(chan struct{}), errors: make(chan error, 100)}
	bridge := NewBridge(limits, s.stopping)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serving.Add(1)
		defer s.serving.Done()
		name := instance
		if other := r.URL.Query().Get("vm"); other != "" {
			name.Name = other
		}
		name.Namespace = cmp.Or(r.URL.Query().Get("namespace"), name.Namespace)
		r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: r.URL.Query().Get("user")}))
		kind := Kind(cmp.Or(r.URL.Query().Get("kind"), string(Console)))
		err := bridge.Serve(w, r,
			Stream{Kind: kind, Instance: name, Dial: func(ctx context.Context) (*websocket.Conn, error) {
				if r.URL.Query().Has("unreachable") {
					return nil, apierrors.NewServiceUnavailable("the agent is away")
				}
				conn, _, err := websocket.Dial(ctx, node.URL, nil) //nolint:bodyclose // the library's
				return conn, err
			}})
		if err != nil {
			s.errors <- err
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(api.Close)
	s.url = api.URL
	return s
}

func (s *fixture) dial(query string) *websocket.Conn {
	s.t.Helper()
	return s.dialAs(query, agentapi.ReasonProtocol, agentapi.StreamProtocol)
}

// dialAs opens a stream as a client that offers subprotocols.
func (s *fixture) dialAs(query string, protocols ...string) *websocket.Conn {
	s.t.Helper()
	conn, _, err := websocket.Dial(s.t.Context(), s.url+query, &websocket.DialOptions{Subprotocols: protocols}) //nolint:bodyclose // the library's
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	return conn
}

// expectEnd reads until the stream ends and compares the close code and reason.
func (s *fixture) expectEnd(conn *websocket.Conn, code websocket.StatusCode, reason string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), timeout)
	defer cancel()
	for {
		_, _, err := conn.Read(ctx)
		if err == nil {
			continue
		}
		var closed websocket.CloseError
		if !errors.As(err, &closed) || closed.Code != code || !strings.Contains(closed.Reason, reason) {
			s.t.Errorf("got %v, want %d %q", err, code, reason)
		}
		return
	}
}

func echo(ctx context.Context, conn *websocket.Conn) {
	for {
		kind, message, err := conn.Read(ctx)
		if err != nil || conn.Write(ctx, kind, message) != nil {
			return
		}
	}
}

func TestMessagesArePreserved(t *testing.T) {
	s := newFixture(t, Limits{}, echo)
	conn := s.dial("")
	for _, size := range []int{1, defaultBuffer - 1, defaultBuffer, defaultBuffer + 1, 5*defaultBuffer + 7} {
		sent := bytes.Repeat([]byte{byte(size)}, size)
		if err := conn.Write(t.Context(), websocket.MessageBinary, sent); err != nil {
			t.Fatal(err)
		}
		got := []byte{}
		for len(got) < size {
			_, piece, err := conn.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if size <= defaultBuffer && len(piece) != size {
				t.Errorf("a message of %d bytes arrived as one of %d", size, len(piece))
			}
			got = append(got, piece...)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%d bytes arrived changed", size)
		}
	}
}

func TestAgentsCloseIsForwarded(t *testing.T) {
	for _, tc := range []struct {
		code   websocket.StatusCode
		reason string
	}{
		{websocket.StatusNormalClosure, "the guest stopped"},
		{4001, "another client took over the console"},
		{websocket.StatusInternalError, ""},
	} {
		s := newFixture(t, Limits{}, func(_ context.Context, conn *websocket.Conn) { _ = conn.Close(tc.code, tc.reason) })
		s.expectEnd(s.dial(""), tc.code, tc.reason)
	}
}

// For KubeVirt's clients a close frame is a successful end. They expect a broken connection when another client has
// taken over.
func TestTakeoverBreaksTheConnectionOfAKubeVirtClient(t *testing.T) {
	for kind, last := range map[Kind]string{Console: "guest: \r\nanother client has it now\r\n", VNC: "guest: "} {
		s := newFixture(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
			_ = conn.Write(ctx, websocket.MessageBinary, []byte("guest: "))
			_ = conn.Close(agentapi.CloseTakenOver, "another client has it now")
		})
		conn := s.dialAs("?kind="+string(kind), agentapi.StreamProtocol)
		got := ""
		for {
			_, message, err := conn.Read(t.Context())
			got += string(message)
			if err == nil {
				continue
			}
			if closed := (websocket.CloseError{}); errors.As(err, &closed) || !errors.Is(err, io.EOF) {
				t.Errorf("%s ended with %v, and not as a connection that breaks", kind, err)
			}
			break
		}
		if got != last {
			t.Errorf("%s: the client got %q, want %q", kind, got, last)
		}
	}
}

func TestMessagesBeforeACloseArrive(t *testing.T) {
	s := newFixture(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
		_ = conn.Write(ctx, websocket.MessageBinary, []byte("last words"))
		_ = conn.Close(websocket.StatusNormalClosure, "bye")
	})
	conn := s.dial("")
	if _, message, err := conn.Read(t.Context()); err != nil || string(message) != "last words" {
		t.Errorf("got %q %v", message, err)
	}
	s.expectEnd(conn, websocket.StatusNormalClosure, "bye")
}

func TestBrokenAgentConnectionIsReported(t *testing.T) {
	s := newFixture(t, Limits{}, func(_ context.Context, conn *websocket.Conn) { _ = conn.CloseNow() })
	s.expectEnd(s.dial(""), websocket.StatusGoingAway, "the connection to the node agent broke")
}

func TestClientsCloseIsForwarded(t *testing.T) {
	ends := make(chan error, 1)
	s := newFixture(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
		_, _, err := conn.Read(ctx)
		ends <- err
	})
	expect := func(code websocket.StatusCode, reason string) {
		t.Helper()
		var closed websocket.CloseError
		if err := <-ends; !errors.As(err, &closed) || closed.Code != code || closed.Reason != reason {
			t.Errorf("got %v, want %d %q", err, code, reason)
		}
	}
	_ = s.dial("").Close(4321, "enough")
	expect(4321, "enough")
	_ = s.dial("").CloseNow()
	expect(websocket.StatusGoingAway, "the connection to the client broke")
}

func TestStoppingSendsCloseFrames(t *testing.T) {
	closed := make(chan error, 1)
	s := newFixture(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
		_, _, err := conn.Read(ctx)
		closed <- err
	})
	conn := s.dial("")
	close(s.stopping)
	s.expectEnd(conn, websocket.StatusGoingAway, stoppingReason)
	if err := <-closed; websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the agent got %v", err)
	}
	s.expectRefusal("", apierrors.IsServiceUnavailable)
}

func (s *fixture) expectRefusal(query string, want func(error) bool) {
	s.t.Helper()
	if _, _, err := websocket.Dial(s.t.Context(), s.url+query, nil); err == nil { //nolint:bodyclose // the library's
		s.t.Fatal("the stream was opened")
	}
	if err := <-s.errors; !want(err) {
		s.t.Errorf("refused with %v", err)
	}
}

func TestLimits(t *testing.T) {
	s := newFixture(t, Limits{Total: 3, PerInstance: 2}, echo)
	first := s.dial("")
	s.dial("")
	s.expectRefusal("", apierrors.IsTooManyRequests)
	s.dial("?vm=other")
	s.expectRefusal("?vm=third", apierrors.IsTooManyRequests)
	_ = first.Close(websocket.StatusNormalClosure, "")
	for deadline := time.Now().Add(timeout); ; {
		conn, _, err := websocket.Dial(t.Context(), s.url, nil) //nolint:bodyclose // the library's
		if err == nil {
			_ = conn.CloseNow()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a stream that ended is still counted")
		}
		if refusal := <-s.errors; !apierrors.IsTooManyRequests(refusal) {
			t.Fatal(refusal)
		}
	}
}

func TestLimitsPerOwner(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limits Limits
		// open are the streams already open. The stream refused exceeds a limit, with the error want; the stream other does
		// not.
		open           []string
		refused, other string
		want           string
	}{
		{"of an instance", Limits{PerInstance: 2}, []string{"?user=a", "?user=b"}, "?user=c", "?vm=other",
			"VirtualMachineInstance ns/vm has 2 streams"},
		{"of a namespace", Limits{PerNamespace: 2}, []string{"?vm=a&user=a", "?vm=b&user=b"}, "?vm=c&user=c", "?namespace=other",
			"namespace ns has 2 streams"},
		{"of a user", Limits{PerUser: 2}, []string{"?user=eve&namespace=a", "?user=eve&namespace=b"}, "?user=eve&namespace=c", "?user=bob",
			"user eve has 2 streams"},
		{"reserve, by namespace", Limits{Total: 4, Reserve: 2, Few: 2}, []string{"?user=a", "?user=b"}, "?user=c", "?user=c&namespace=other",
			"namespace ns has 2"},
		{"reserve, by user", Limits{Total: 4, Reserve: 2, Few: 2}, []string{"?user=eve&namespace=a", "?user=eve&namespace=b"},
			"?user=eve&namespace=c", "?user=bob", "user eve has 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newFixture(t, tc.limits, echo)
			for _, query := range tc.open {
				s.dial(query)
			}
			s.expectRefusal(tc.refused, func(err error) bool {
				return apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), tc.want)
			})
			s.dial(tc.other)
		})
	}
}

// Ten tenants at their limits leave streams for another.
func TestReserve(t *testing.T) {
	b := NewBridge(Limits{}, make(chan struct{}))
	open := func(namespace, user string) int {
		for n := 0; ; n++ {
			name := types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(n % 20)}
			if _, err := b.admit(name, user); err != nil {
				return n
			}
		}
	}
	for i := range 10 {
		open("greedy-"+strconv.Itoa(i), "greedy-"+strconv.Itoa(i))
	}
	if n := open("modest", "modest"); n < b.limits.Few {
		t.Errorf("a namespace that had none gets %d streams", n)
	}
}

func TestRefusedStreamsAreNotCounted(t *testing.T) {
	s := newFixture(t, Limits{PerInstance: 1}, echo)
	for range 3 {
		s.expectRefusal("?unreachable=", apierrors.IsServiceUnavailable)
	}
	s.dial("")
	s.expectRefusal("", apierrors.IsTooManyRequests)
}

// flood sends until the connection fails.
func flood(ctx context.Context, conn *websocket.Conn) {
	piece := bytes.Repeat([]byte("x"), defaultBuffer)
	for conn.Write(ctx, websocket.MessageBinary, piece) == nil {
	}
}

func TestClientThatNeverReadsIsDisconnected(t *testing.T) {
	ended := make(chan error, 1)
	s := newFixture(t, Limits{WriteTimeout: 200 * time.Millisecond, PingInterval: time.Hour},
		func(ctx context.Context, conn *websocket.Conn) {
			go flood(ctx, conn)
			_, _, err := conn.Read(ctx)
			ended <- err
		})
	idle := s.dial("")
	other := newFixture(t, Limits{}, echo).dial("")
	select {
	case err := <-ended:
		var closed websocket.CloseError
		if !errors.As(err, &closed) || closed.Code != websocket.StatusPolicyViolation ||
			closed.Reason != "the client read nothing for 200ms" {
			t.Errorf("the agent got %v", err)
		}
	case <-time.After(timeout):
		t.Fatal("the stream is still open")
	}
	if _, err := io.Copy(io.Discard, websocket.NetConn(t.Context(), idle, websocket.MessageBinary)); err == nil {
		t.Error("the client got a close frame")
	}
	if err := other.Write(t.Context(), websocket.MessageBinary, []byte("still here")); err != nil {
		t.Error(err)
	}
	s.serving.Wait()
}

func TestAgentThatNeverReadsIsDisconnected(t *testing.T) {
	release := make(chan struct{})
	s := newFixture(t, Limits{WriteTimeout: 200 * time.Millisecond, PingInterval: time.Hour},
		func(context.Context, *websocket.Conn) { <-release })
	defer close(release)
	conn := s.dial("")
	go flood(t.Context(), conn)
	s.expectEnd(conn, websocket.StatusPolicyViolation, "the node agent read nothing for 200ms")
}

func TestUnresponsiveClientIsDisconnected(t *testing.T) {
	ended := make(chan error, 1)
	s := newFixture(t, Limits{PingInterval: 10 * time.Millisecond, PingTimeout: 100 * time.Millisecond},
		func(ctx context.Context, conn *websocket.Conn) {
			_, _, err := conn.Read(ctx)
			ended <- err
		})
	s.dial("") // does not read, and so does not respond to pings
	var closed websocket.CloseError
	if err := <-ended; !errors.As(err, &closed) || closed.Reason != "the client does not respond any more" {
		t.Errorf("the agent got %v", err)
	}
}

func TestIdleStreamIsPinged(t *testing.T) {
	pings := make(chan struct{}, 1000)
	s := newFixture(t, Limits{PingInterval: time.Millisecond}, echo)
	conn, _, err := websocket.Dial(t.Context(), s.url, &websocket.DialOptions{ //nolint:bodyclose // the library's
		OnPingReceived: func(context.Context, []byte) bool {
			select {
			case pings <- struct{}{}:
			default:
			}
			return true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	reading := conn.CloseRead(t.Context())
	for range 20 {
		select {
		case <-pings:
		case <-reading.Done():
			t.Fatal("the stream ended")
		}
	}
	_ = conn.CloseNow()
}

func TestRequestWithoutUpgradeIsRefused(t *testing.T) {
	s := newFixture(t, Limits{}, echo)
	response, err := http.Get(s.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if err := <-s.errors; !apierrors.IsBadRequest(err) {
		t.Errorf("got %v", err)
	}
}

func TestGaugeCounts(t *testing.T) {
	s := newFixture(t, Limits{}, echo)
	gauge := gauges[Console].vec
	conns := []*websocket.Conn{s.dial("?vm=counted"), s.dial("?vm=counted")}
	for _, conn := range conns { // a stream that carries bytes has been counted
		if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := testutil.ToFloat64(gauge.WithLabelValues("ns", "counted")); got != 2 {
		t.Errorf("got %v", got)
	}
	for _, conn := range conns {
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
	s.serving.Wait()
	if gauge.DeleteLabelValues("ns", "counted") {
		t.Error("a series is left behind")
	}
}

// TestGoroutinesFinish ends streams with and without a close frame, and counts goroutines.
func TestGoroutinesFinish(t *testing.T) {
	s := newFixture(t, Limits{}, echo)
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	before := runtime.NumGoroutine()
	for range 20 {
		conn := s.dial("")
		_ = conn.Close(websocket.StatusNormalClosure, "")
		_ = s.dial("").CloseNow()
	}
	s.serving.Wait()
	for deadline := time.Now().Add(timeout); runtime.NumGoroutine() > before+5; {
		if time.Now().After(deadline) {
			buffer := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, buffer[:runtime.Stack(buffer, true)])
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		time.Sleep(10 * time.Millisecond)
	}
}
