// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// shoutingGuest returns its input in capitals.
func shoutingGuest(ctx context.Context, socket *websocket.Conn, _ *http.Request) error {
	conn := virtctltest.Conn(ctx, socket)
	if _, err := conn.Write([]byte("login: ")); err != nil {
		return err
	}
	buffer := make([]byte, 100)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		if _, err := conn.Write([]byte(strings.ToUpper(string(buffer[:n])))); err != nil {
			return err
		}
	}
}

// atTerminal runs virtctl in a terminal and returns a channel with its exit code.
func atTerminal(
	ctx context.Context, s *virtctltest.Server, term *virtctltest.Terminal, arguments ...string,
) <-chan int {
	code := make(chan int, 1)
	go func() { code <- s.RunStreams(ctx, virtctl.Execute, term.Streams(), arguments...) }()
	return code
}

func expectCode(t *testing.T, codes <-chan int, want int) {
	t.Helper()
	select {
	case got := <-codes:
		if got != want {
			t.Errorf("exit code %d, want %d", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not exit")
	}
}

func TestConsole(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Stream(vmiPath+"console", shoutingGuest)
	term := virtctltest.NewTerminal(t)
	code := atTerminal(t.Context(), s, term, "console", "demo")
	term.Expect("Successfully connected to demo console")
	term.Expect("login: ")
	if !term.IsRaw() {
		t.Error("the terminal is not raw")
	}
	term.Type("root\x03")
	term.Expect("ROOT\x03")
	term.Type("and\x1dnever")
	expectCode(t, code, 0)
	if term.IsRaw() {
		t.Error("the terminal was left raw")
	}
	if strings.Contains(term.Screen(), "NEVER") {
		t.Error("what is typed after the escape sequence went to the guest")
	}
}

func TestConsoleReportsATakeover(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Subresource(http.MethodGet, vmiPath+"console", func(w http.ResponseWriter, r *http.Request) {
		// As in virt-api: clients that support the subprotocol get the reason.
		socket, err := websocket.Accept(w, r,
			&websocket.AcceptOptions{Subprotocols: []string{agentapi.ReasonProtocol, agentapi.StreamProtocol}})
		if err != nil {
			return
		}
		if socket.Subprotocol() != agentapi.ReasonProtocol {
			_ = socket.CloseNow()
			return
		}
		_ = socket.Close(agentapi.CloseTakenOver, "another client took over the console")
	})
	term := virtctltest.NewTerminal(t)
	code := atTerminal(t.Context(), s, term, "console", "demo")
	term.Expect("you were disconnected from the console of demo: another client took over the console")
	expectCode(t, code, 1)
}

func TestConsoleWaitsForTheInstance(t *testing.T) {
	s := virtctltest.NewServer(t)
	vm := builder.MakeVM("demo").Namespace(virtctltest.Namespace).Obj()
	vm.Status.PrintableStatus = v1.VirtualMachineStatusStarting
	s.Add(vm)
	var requests atomic.Int32
	s.Subresource(http.MethodGet, vmiPath+"console", func(w http.ResponseWriter, r *http.Request) {
		switch requests.Add(1) {
		case 1:
			virtctltest.Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, `virtualmachineinstance.kubevirt.io "demo" not found`)
		case 2:
			virtctltest.Refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "VMI is not running")
		default:
			socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"plain.kubevirt.io"}})
			if err == nil {
				virtctltest.CloseWith(socket, shoutingGuest(r.Context(), socket, r))
			}
		}
	})
	term := virtctltest.NewTerminal(t)
	code := atTerminal(t.Context(), s, term, "console", "demo")
	term.Expect("Waiting for demo: VMI is not running")
	term.Expect("login: ")
	term.Type("\x1d")
	expectCode(t, code, 0)
}

func TestConsoleFails(t *testing.T) {
	s := virtctltest.NewServer(t)
	stopped := builder.MakeVM("stopped").Namespace(virtctltest.Namespace).Obj()
	stopped.Status.PrintableStatus = v1.VirtualMachineStatusStopped
	s.Add(stopped)
	s.Subresource(http.MethodGet, vmiPath+"console", func(w http.ResponseWriter, r *http.Request) {
		switch name := r.PathValue("name"); name {
		case "headless":
			virtctltest.Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "No serial consoles are present.")
		case "starting":
			virtctltest.Refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "VMI is not running")
		case "secret":
			virtctltest.Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden,
				"virtualmachineinstances/console is forbidden")
		default:
			virtctltest.Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, `virtualmachineinstance.kubevirt.io "`+name+`" not found`)
		}
	})
	for name, want := range map[string]string{
		"headless": "No serial consoles are present",
		"stopped":  "VM stopped is stopped. Start it with: virtctl start stopped",
		"absent":   `"absent" not found`,
		"secret":   "is forbidden",
		"starting": "timeout trying to connect",
	} {
		t.Run(name, func(t *testing.T) {
			expectFailure(t, s.Run(virtctl.Execute, "console", name, "--timeout=0"), want)
		})
	}
}

func TestConsoleEnds(t *testing.T) {
	tests := map[string]struct {
		end  error
		code int
		says string
	}{
		"taken over":      {websocket.CloseError{Code: websocket.StatusPolicyViolation, Reason: "another client took the console"}, 1, "another client took the console"},
		"lost":            {context.DeadlineExceeded, 1, "another user connected to its console"},
		"guest went down": {nil, 0, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := virtctltest.NewServer(t)
			s.Stream(vmiPath+"console", func(context.Context, *websocket.Conn, *http.Request) error { return tt.end })
			term := virtctltest.NewTerminal(t)
			code := atTerminal(t.Context(), s, term, "console", "demo")
			expectCode(t, code, tt.code)
			term.Expect(tt.says)
			if term.IsRaw() {
				t.Error("the terminal was left raw")
			}
		})
	}
}

func TestConsoleReconnects(t *testing.T) {
	s := virtctltest.NewServer(t)
	var connections atomic.Int32
	s.Stream(vmiPath+"console", func(ctx context.Context, socket *websocket.Conn, r *http.Request) error {
		if connections.Add(1) == 1 {
			return websocket.CloseError{Code: websocket.StatusGoingAway, Reason: "virt-api is shutting down"}
		}
		return shoutingGuest(ctx, socket, r)
	})
	term := virtctltest.NewTerminal(t)
	code := atTerminal(t.Context(), s, term, "console", "demo")
	term.Expect("virt-api is shutting down")
	term.Expect("Reconnected to demo console")
	term.Type("root")
	term.Expect("ROOT")
	term.Type("\x1d")
	expectCode(t, code, 0)
}

func TestConsoleQuitsWhileReconnecting(t *testing.T) {
	s := virtctltest.NewServer(t)
	var connections atomic.Int32
	s.Subresource(http.MethodGet, vmiPath+"console", func(w http.ResponseWriter, r *http.Request) {
		if connections.Add(1) > 1 {
			virtctltest.Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "no agent")
			return
		}
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"plain.kubevirt.io"}})
		if err == nil {
			_ = socket.Close(websocket.StatusGoingAway, "bye")
		}
	})
	term := virtctltest.NewTerminal(t)
	code := atTerminal(t.Context(), s, term, "console", "demo")
	term.Expect("Waiting for demo: no agent")
	term.Type("\x03")
	expectCode(t, code, 0)
}
