// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// withUSB returns a VMI whose guest has USB ports for clients.
func withUSB() *v1.VirtualMachineInstance {
	vmi := instance()
	vmi.Spec.Domain.Devices.ClientPassthrough = &v1.ClientPassthroughDevices{}
	return vmi
}

func TestUSBRedirectionHasOnePortPerClient(t *testing.T) {
	n := newNode(t, nil, withUSB(), launcherPod())
	at := n.url("", agentapi.USBRedir)
	plugged := make([]*websocket.Conn, launcherpod.USBPorts)
	for port := range plugged {
		plugged[port] = n.stream(at)
		expectMessage(t, plugged[port], fmt.Sprintf(libvirt.USBHello, port))
		send(t, plugged[port], "a descriptor")
		expectMessage(t, plugged[port], "a descriptor")
	}
	code, body := n.refused(at)
	expectStatus(t, code, body, http.StatusServiceUnavailable, "All USB devices are in use")

	// The next client gets the port of one that disconnects, and the others keep theirs.
	const closed = 2
	if err := plugged[closed].Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	plugged[closed] = n.streamWhenFree(at)
	expectMessage(t, plugged[closed], fmt.Sprintf(libvirt.USBHello, closed))
	for _, stream := range plugged {
		send(t, stream, "still here")
		expectMessage(t, stream, "still here")
	}
}

// streamWhenFree opens a stream once the agent has noticed that another one was closed.
func (n *node) streamWhenFree(url string) *websocket.Conn {
	n.t.Helper()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if stream, _, _ := n.dial(url); stream != nil {
			return stream
		}
	}
	n.t.Fatal("no port is free again")
	return nil
}

func TestUSBRedirectionIsRejected(t *testing.T) {
	t.Run("guest without it", func(t *testing.T) {
		n := newNode(t, nil)
		code, body := n.refused(n.url("", agentapi.USBRedir))
		expectStatus(t, code, body, http.StatusConflict, "Not configured with USB Redirection")
	})
	t.Run("guest without the ports, and the port stays free", func(t *testing.T) {
		n := newNode(t, nil, withUSB(), launcherPod())
		at := n.url("", agentapi.USBRedir)
		n.launcher.Fail("usb", hypervisor.ErrNotRunning)
		for range launcherpod.USBPorts + 1 {
			code, body := n.refused(at)
			expectStatus(t, code, body, http.StatusConflict, "not running")
		}
		n.launcher.Fail("usb", nil)
		expectMessage(t, n.stream(at), fmt.Sprintf(libvirt.USBHello, 0))
	})
}
