// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"net/http"
	"testing"

	"github.com/coder/websocket"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func devices(change func(*v1.Devices)) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { change(&vmi.Spec.Domain.Devices) }
}

func TestStreamsAreRefused(t *testing.T) {
	paused := with(v1.VirtualMachineInstancePaused)
	usb := devices(func(d *v1.Devices) { d.ClientPassthrough = &v1.ClientPassthroughDevices{} })
	vsock := devices(func(d *v1.Devices) { d.AutoattachVSOCK = ptr.To(true) })
	noInterfaces := func(vmi *v1.VirtualMachineInstance) { vmi.Status.Interfaces = nil }
	const noWebsocket = "this request needs a websocket"
	for _, tc := range []struct {
		path, state string
		change      []func(*v1.VirtualMachineInstance)
		code        int
		message     string
	}{
		{"console", "without one", list(devices(func(d *v1.Devices) { d.AutoattachSerialConsole = ptr.To(false) })), 400, "No serial consoles are present."},
		{"console", "failed", list(phase(v1.Failed)), 409, "VMI is in failed status"},
		{"console", "scheduled", list(phase(v1.Scheduled)), 400, "VMI is not running"},
		{"console", "no websocket", nil, 400, noWebsocket},
		{"vnc", "without screen", list(devices(func(d *v1.Devices) { d.AutoattachGraphicsDevice = ptr.To(false) })), 400, "No graphics devices are present."},
		{"vnc", "ended", list(phase(v1.Succeeded)), 400, "VMI is not running"},
		{"vnc?preserveSession=perhaps", "garbled", nil, 400, `preserveSession: "perhaps" is neither true nor false`},
		{"vnc", "no websocket", nil, 400, noWebsocket},
		{"usbredir", "without it", nil, 409, "Not configured with USB Redirection"},
		{"usbredir", "ended", list(usb, phase(v1.Succeeded)), 400, "VMI is not running"},
		{"usbredir", "no websocket", list(usb), 400, noWebsocket},
		{"vsock?port=22", "without it", nil, 400, "VSOCK is not attached."},
		{"vsock", "without port", list(vsock), 400, "port: a number from 1 to 4294967295 is required"},
		{"vsock?port=22", "ended", list(vsock, phase(v1.Succeeded)), 400, "because phase is Succeeded instead of Running or Scheduled"},
		{"vsock?port=22", "no websocket", list(vsock), 400, noWebsocket},
		{"portforward/22", "paused", list(paused), 409, "VMI is paused"},
		{"portforward/22", "without network", list(noInterfaces), 400, "no network interfaces are present"},
		{"portforward/ssh", "name", nil, 400, `port: "ssh" is not a number from 1 to 65535`},
		{"portforward/65536", "large", nil, 400, "is not a number from 1 to 65535"},
		{"portforward/22/sctp", "protocol", nil, 400, `protocol: "sctp" is neither tcp nor udp`},
		{"portforward/22/udp", "no websocket", nil, 400, noWebsocket},
	} {
		t.Run(tc.path+" "+tc.state, func(t *testing.T) {
			vmi := running("vm")
			for _, change := range tc.change {
				vmi.With(change)
			}
			w := newWorld(t, vmi.Obj())
			w.expect(http.MethodGet, vmiPath+"vm/"+tc.path, "", tc.code, tc.message)
			w.expectCalls()
		})
	}
}

func TestStreamsWithoutVMI(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"console", "vnc", "usbredir", "vsock?port=22", "portforward/22", "portforward/22/udp",
		"vnc/screenshot"} {
		w.expect(http.MethodGet, vmiPath+"none/"+path, "", 404, `virtualmachineinstance.kubevirt.io "none" not found`)
	}
}

func list[T any](items ...T) []T { return items }

func TestPortForwardOfAVM(t *testing.T) {
	created := func(vm *v1.VirtualMachine) { vm.Status.Created = true }
	mine := builder.MakeVM("mine").Namespace("ns").UID("1").With(created).Obj()
	objects := []client.Object{
		mine, running("mine").OwnedBy(mine).Obj(),
		builder.MakeVM("stopped").Namespace("ns").UID("2").Obj(),
		builder.MakeVM("gone").Namespace("ns").UID("3").With(created).Obj(),
		builder.MakeVM("other").Namespace("ns").UID("4").With(created).Obj(), running("other").Obj(),
	}
	w := newWorld(t, objects...)
	w.expect(http.MethodGet, vmPath+"none/portforward/22", "", 404, `virtualmachine.kubevirt.io "none" not found`)
	w.expect(http.MethodGet, vmPath+"stopped/portforward/22", "", 409, "VMI is not started")
	w.expect(http.MethodGet, vmPath+"gone/portforward/22", "", 404, `virtualmachineinstance.kubevirt.io "gone" not found`)
	w.expect(http.MethodGet, vmPath+"other/portforward/22", "", 409, "exists but belongs to another owner")
	w.expectEcho(vmPath+"mine/portforward/22", "portforward/22")
}

// expectEcho opens a stream to an agent that echoes, sends a message and expects it back.
func (w *world) expectEcho(path, call string) {
	w.t.Helper()
	conn, code, err := w.dial(path)
	if err != nil {
		w.t.Fatalf("%s: %d %v", path, code, err)
	}
	defer func() { _ = conn.Close(websocket.StatusNormalClosure, "") }()
	if conn.Subprotocol() != "plain.kubevirt.io" {
		w.t.Errorf("%s: subprotocol %q", path, conn.Subprotocol())
	}
	if err := conn.Write(w.t.Context(), websocket.MessageBinary, []byte("hello")); err != nil {
		w.t.Fatal(err)
	}
	_, message, err := conn.Read(w.t.Context())
	if err != nil || string(message) != "hello" {
		w.t.Errorf("%s: %q %v", path, message, err)
	}
	w.expectCalls("GET " + call)
}

func TestStreams(t *testing.T) {
	vmi := running("vm").With(devices(func(d *v1.Devices) {
		d.ClientPassthrough, d.AutoattachVSOCK = &v1.ClientPassthroughDevices{}, ptr.To(true)
	}))
	w := newWorld(t, vmi.Obj())
	for path, call := range map[string]string{
		"console": "console", "vnc": "vnc", "vnc?preserveSession=true": "vnc", "usbredir": "usbredir", "vsock?port=22": "vsock",
		"portforward/22": "portforward/22", "portforward/22/tcp": "portforward/22", "portforward/53/udp": "portforward/53/udp",
	} {
		w.expectEcho(vmiPath+"vm/"+path, call)
	}
}

func TestParametersAreForwarded(t *testing.T) {
	vmi := running("vm").With(devices(func(d *v1.Devices) { d.AutoattachVSOCK = ptr.To(true) }))
	w := newWorld(t, vmi.Obj())
	for path, want := range map[string]string{
		"vnc?preserveSession=false":     "uid=uid-vm",
		"vnc?preserveSession=true&x=1":  "preserveSession=true&uid=uid-vm",
		"vsock?port=022":                "port=22&tls=true&uid=uid-vm",
		"vsock?port=7&tls=false&uid=me": "port=7&tls=false&uid=uid-vm",
	} {
		conn, _, err := w.dial(vmiPath + "vm/" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseNow()
		if calls := w.agent.Calls(); len(calls) != 1 || calls[0].Query.Encode() != want {
			t.Errorf("%s: got %v, want %s", path, calls, want)
		}
	}
}

func TestAgentsErrorPrecedesTheUpgrade(t *testing.T) {
	w := newWorld(t, running("vm").Obj())
	w.agent.SetError("vnc", 409, "another client is connected to the screen")
	_, code, err := w.dial(vmiPath + "vm/vnc?preserveSession=true")
	if err == nil || code != http.StatusConflict {
		t.Fatalf("got %d %v", code, err)
	}
}

func TestUnreachableAgent(t *testing.T) {
	w := newWorld(t, running("vm").With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }).Obj(),
		running("odd").With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "evil.example:1/" }).Obj())
	w.expect(http.MethodPut, vmiPath+"vm/pause", "", 503, "node node2 has no running agent: there is no virt-handler Pod")
	w.expect(http.MethodPut, vmiPath+"odd/pause", "", 500, `node "evil.example:1/", which is not a valid node name`)
	// The agent at the address of node2's Pod has the certificate of node1.
	if err := w.client.Create(context.Background(), agentPod("node2")); err != nil {
		t.Fatal(err)
	}
	w.expect(http.MethodPut, vmiPath+"vm/pause", "", 503,
		"the agent of node node2 cannot be reached: tls: failed to verify certificate: x509: certificate is valid for node1.virt-handler, not node2.virt-handler")
	w.expectCalls()
}
