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

	"github.com/vireo-project/vireo/internal/agentapi"
)

var instance = types.NamespacedName{Namespace: "ns", Name: "vm"}

// patience is what a loaded machine may need.
const patience = time.Minute

// scene is a bridge between a client and an agent that does as it is told.
type scene struct {
	t        *testing.T
	url      string
	stopping chan struct{}
	serving  sync.WaitGroup
	// refusals are what the bridge answered.
	refusals chan error
}

func newScene(t *testing.T, limits Limits, agent func(context.Context, *websocket.Conn)) *scene {
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
	s := &scene{t: t, stopping: make(chan struct{}), refusals: make(chan error, 100)}
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
		err := bridge.Serve(w, r, Stream{Kind: kind, Instance: name, Dial: func(ctx context.Context) (*websocket.Conn, error) {
			if r.URL.Query().Has("unreachable") {
				return nil, apierrors.NewServiceUnavailable("the agent is away")
			}
			conn, _, err := websocket.Dial(ctx, node.URL, nil) //nolint:bodyclose // the library's
			return conn, err
		}})
		if err != nil {
			s.refusals <- err
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(api.Close)
	s.url = api.URL
	return s
}

func (s *scene) dial(query string) *websocket.Conn {
	s.t.Helper()
	return s.dialAs(query, agentapi.ReasonProtocol, agentapi.StreamProtocol)
}

// dialAs opens a stream as a client that knows some protocols.
func (s *scene) dialAs(query string, protocols ...string) *websocket.Conn {
	s.t.Helper()
	conn, _, err := websocket.Dial(s.t.Context(), s.url+query, &websocket.DialOptions{Subprotocols: protocols}) //nolint:bodyclose // the library's
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	return conn
}

// expectEnd reads until the stream ends and compares how.
func (s *scene) expectEnd(conn *websocket.Conn, code websocket.StatusCode, reason string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
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

func TestMessagesArriveWhole(t *testing.T) {
	s := newScene(t, Limits{}, echo)
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
			t.Errorf("%d bytes arrived as others", size)
		}
	}
}

func TestEndOfTheAgentReachesTheClient(t *testing.T) {
	for _, tc := range []struct {
		code   websocket.StatusCode
		reason string
	}{
		{websocket.StatusNormalClosure, "the guest stopped"},
		{4001, "another client took over the console"},
		{websocket.StatusInternalError, ""},
	} {
		s := newScene(t, Limits{}, func(_ context.Context, conn *websocket.Conn) { _ = conn.Close(tc.code, tc.reason) })
		s.expectEnd(s.dial(""), tc.code, tc.reason)
	}
}

// KubeVirt's clients take a close frame for a good end, and wait for a bad one when another client has taken over.
func TestStreamOfAKubeVirtClientBreaksWhenItIsTakenOver(t *testing.T) {
	for kind, last := range map[Kind]string{Console: "guest: \r\nanother client has it now\r\n", VNC: "guest: "} {
		s := newScene(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
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

func TestWhatWasSentBeforeTheEndArrives(t *testing.T) {
	s := newScene(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
		_ = conn.Write(ctx, websocket.MessageBinary, []byte("last words"))
		_ = conn.Close(websocket.StatusNormalClosure, "bye")
	})
	conn := s.dial("")
	if _, message, err := conn.Read(t.Context()); err != nil || string(message) != "last words" {
		t.Errorf("got %q %v", message, err)
	}
	s.expectEnd(conn, websocket.StatusNormalClosure, "bye")
}

func TestAgentThatBreaksIsSaid(t *testing.T) {
	s := newScene(t, Limits{}, func(_ context.Context, conn *websocket.Conn) { _ = conn.CloseNow() })
	s.expectEnd(s.dial(""), websocket.StatusGoingAway, "the connection to the node agent broke")
}

func TestEndOfTheClientReachesTheAgent(t *testing.T) {
	ends := make(chan error, 1)
	s := newScene(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
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

func TestStoppingIsSaid(t *testing.T) {
	told := make(chan error, 1)
	s := newScene(t, Limits{}, func(ctx context.Context, conn *websocket.Conn) {
		_, _, err := conn.Read(ctx)
		told <- err
	})
	conn := s.dial("")
	close(s.stopping)
	s.expectEnd(conn, websocket.StatusGoingAway, goodbye)
	if err := <-told; websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the agent was told %v", err)
	}
	s.expectRefusal("", apierrors.IsServiceUnavailable)
}

func (s *scene) expectRefusal(query string, want func(error) bool) {
	s.t.Helper()
	if _, _, err := websocket.Dial(s.t.Context(), s.url+query, nil); err == nil { //nolint:bodyclose // the library's
		s.t.Fatal("the stream was opened")
	}
	if err := <-s.refusals; !want(err) {
		s.t.Errorf("refused with %v", err)
	}
}

func TestLimits(t *testing.T) {
	s := newScene(t, Limits{Total: 3, PerInstance: 2}, echo)
	first := s.dial("")
	s.dial("")
	s.expectRefusal("", apierrors.IsTooManyRequests)
	s.dial("?vm=other")
	s.expectRefusal("?vm=third", apierrors.IsTooManyRequests)
	_ = first.Close(websocket.StatusNormalClosure, "")
	for deadline := time.Now().Add(patience); ; {
		conn, _, err := websocket.Dial(t.Context(), s.url, nil) //nolint:bodyclose // the library's
		if err == nil {
			_ = conn.CloseNow()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a stream that ended is still counted")
		}
		if refusal := <-s.refusals; !apierrors.IsTooManyRequests(refusal) {
			t.Fatal(refusal)
		}
	}
}

func TestShares(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limits Limits
		// open are streams that are there, refused is one too many, and open is another that is not.
		open           []string
		refused, other string
		why            string
	}{
		{"of an instance", Limits{PerInstance: 2}, []string{"?user=a", "?user=b"}, "?user=c", "?vm=other",
			"VirtualMachineInstance ns/vm has 2 streams open at this virt-api, which is the limit for one instance"},
		{"of a namespace", Limits{PerNamespace: 2}, []string{"?vm=a&user=a", "?vm=b&user=b"}, "?vm=c&user=c", "?namespace=other",
			"namespace ns has 2 streams open at this virt-api, which is the limit for one namespace"},
		{"of a user", Limits{PerUser: 2}, []string{"?user=eve&namespace=a", "?user=eve&namespace=b"}, "?user=eve&namespace=c", "?user=bob",
			"user eve has 2 streams open at this virt-api, which is the limit for one user"},
		{"what is left of all, by namespace", Limits{Total: 4, Reserve: 2, Few: 2}, []string{"?user=a", "?user=b"}, "?user=c", "?user=c&namespace=other",
			"namespace ns has 2"},
		{"what is left of all, by user", Limits{Total: 4, Reserve: 2, Few: 2}, []string{"?user=eve&namespace=a", "?user=eve&namespace=b"},
			"?user=eve&namespace=c", "?user=bob", "user eve has 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScene(t, tc.limits, echo)
			for _, query := range tc.open {
				s.dial(query)
			}
			s.expectRefusal(tc.refused, func(err error) bool {
				return apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), tc.why)
			})
			s.dial(tc.other)
		})
	}
}

// Four instances of one tenant must not be enough to keep all others out.
func TestOneTenantLeavesRoomForOthers(t *testing.T) {
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

// A stream that does not come about is not counted.
func TestRefusedStreamsLeaveNothingBehind(t *testing.T) {
	s := newScene(t, Limits{PerInstance: 1}, echo)
	for range 3 {
		s.expectRefusal("?unreachable=", apierrors.IsServiceUnavailable)
	}
	s.dial("")
	s.expectRefusal("", apierrors.IsTooManyRequests)
}

// flood sends until it is stopped.
func flood(ctx context.Context, conn *websocket.Conn) {
	piece := bytes.Repeat([]byte("x"), defaultBuffer)
	for conn.Write(ctx, websocket.MessageBinary, piece) == nil {
	}
}

func TestClientThatNeverReadsIsCut(t *testing.T) {
	cut := make(chan error, 1)
	s := newScene(t, Limits{WriteTimeout: 200 * time.Millisecond, PingInterval: time.Hour}, func(ctx context.Context, conn *websocket.Conn) {
		go flood(ctx, conn)
		_, _, err := conn.Read(ctx)
		cut <- err
	})
	idle := s.dial("")
	other := newScene(t, Limits{}, echo).dial("")
	select {
	case err := <-cut:
		var closed websocket.CloseError
		if !errors.As(err, &closed) || closed.Code != websocket.StatusPolicyViolation || closed.Reason != "the client read nothing for 200ms" {
			t.Errorf("the agent was told %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the stream goes on")
	}
	if _, err := io.Copy(io.Discard, websocket.NetConn(t.Context(), idle, websocket.MessageBinary)); err == nil {
		t.Error("the client sees an orderly end")
	}
	if err := other.Write(t.Context(), websocket.MessageBinary, []byte("still here")); err != nil {
		t.Error(err)
	}
	s.serving.Wait()
}

func TestAgentThatNeverReadsIsCut(t *testing.T) {
	release := make(chan struct{})
	s := newScene(t, Limits{WriteTimeout: 200 * time.Millisecond, PingInterval: time.Hour}, func(context.Context, *websocket.Conn) { <-release })
	defer close(release)
	conn := s.dial("")
	go flood(t.Context(), conn)
	s.expectEnd(conn, websocket.StatusPolicyViolation, "the node agent read nothing for 200ms")
}

func TestSilentClientIsFound(t *testing.T) {
	told := make(chan error, 1)
	s := newScene(t, Limits{PingInterval: 10 * time.Millisecond, PingTimeout: 100 * time.Millisecond}, func(ctx context.Context, conn *websocket.Conn) {
		_, _, err := conn.Read(ctx)
		told <- err
	})
	s.dial("") // does not read, and so does not answer
	var closed websocket.CloseError
	if err := <-told; !errors.As(err, &closed) || closed.Reason != "the client does not answer any more" {
		t.Errorf("the agent was told %v", err)
	}
}

func TestPingsKeepAnIdleStream(t *testing.T) {
	pings := make(chan struct{}, 1000)
	s := newScene(t, Limits{PingInterval: time.Millisecond}, echo)
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

func TestNoWebsocketIsRefused(t *testing.T) {
	s := newScene(t, Limits{}, echo)
	response, err := http.Get(s.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if err := <-s.refusals; !apierrors.IsBadRequest(err) {
		t.Errorf("got %v", err)
	}
}

func TestGaugeCounts(t *testing.T) {
	s := newScene(t, Limits{}, echo)
	gauge := gauges[Console].vec
	conns := []*websocket.Conn{s.dial("?vm=counted"), s.dial("?vm=counted")}
	for _, conn := range conns { // it is counted by the time that it carries
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

// TestNothingIsLeftRunning ends streams in every way and counts goroutines.
func TestNothingIsLeftRunning(t *testing.T) {
	s := newScene(t, Limits{}, echo)
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	before := runtime.NumGoroutine()
	for range 20 {
		conn := s.dial("")
		_ = conn.Close(websocket.StatusNormalClosure, "")
		_ = s.dial("").CloseNow()
	}
	s.serving.Wait()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before+5; {
		if time.Now().After(deadline) {
			buffer := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, buffer[:runtime.Stack(buffer, true)])
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		time.Sleep(10 * time.Millisecond)
	}
}
