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
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// withUSB is an instance whose guest has USB ports for clients.
func withUSB() *v1.VirtualMachineInstance {
	vmi := instance()
	vmi.Spec.Domain.Devices.ClientPassthrough = &v1.ClientPassthroughDevices{}
	return vmi
}

func TestUSBRedirectionHasAPortForEachClient(t *testing.T) {
	n := newNode(t, nil, withUSB(), launcherPod())
	at := n.url("", agentapi.USBRedir)
	plugged := make([]*websocket.Conn, launcherpod.USBPorts)
	for port := range plugged {
		plugged[port] = n.stream(at)
		hear(t, plugged[port], fmt.Sprintf(fake.USBHello, port))
		say(t, plugged[port], "a descriptor")
		hear(t, plugged[port], "a descriptor")
	}
	code, body := n.refused(at)
	expectStatus(t, code, body, http.StatusServiceUnavailable, "All USB devices are in use")

	// What one client leaves is the next one's, and nobody else notices.
	const left = 2
	if err := plugged[left].Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	plugged[left] = n.streamWhenFree(at)
	hear(t, plugged[left], fmt.Sprintf(fake.USBHello, left))
	for _, stream := range plugged {
		say(t, stream, "still here")
		hear(t, stream, "still here")
	}
}

// streamWhenFree opens a stream as soon as the agent has noticed that another one has ended.
func (n *node) streamWhenFree(url string) *websocket.Conn {
	n.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if stream, _, _ := n.dial(url); stream != nil {
			return stream
		}
	}
	n.t.Fatal("no port is free again")
	return nil
}

func TestUSBRedirectionIsRefused(t *testing.T) {
	t.Run("to a guest without it", func(t *testing.T) {
		n := newNode(t, nil)
		code, body := n.refused(n.url("", agentapi.USBRedir))
		expectStatus(t, code, body, http.StatusConflict, "Not configured with USB Redirection")
	})
	t.Run("to a guest that runs without the ports, and the port stays free", func(t *testing.T) {
		n := newNode(t, nil, withUSB(), launcherPod())
		at := n.url("", agentapi.USBRedir)
		n.launcher.Fail("usb", hypervisor.ErrNotRunning)
		for range launcherpod.USBPorts + 1 {
			code, body := n.refused(at)
			expectStatus(t, code, body, http.StatusConflict, "not running")
		}
		n.launcher.Fail("usb", nil)
		hear(t, n.stream(at), fmt.Sprintf(fake.USBHello, 0))
	})
}
