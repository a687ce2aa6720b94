// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clientcompat

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"
	kvcorev1 "kubevirt.io/client-go/kubevirt/typed/core/v1"
)

// TestStreams opens each stream with KubeVirt's AsyncSubresourceHelper, to an agent that echoes.
func TestStreams(t *testing.T) {
	runVM(t, "talks", v1.RunStrategyAlways)
	vmis, plain := kubevirt.VirtualMachineInstance(namespace), false
	for name, open := range map[string]func() (kvcorev1.StreamInterface, error){
		"console": func() (kvcorev1.StreamInterface, error) {
			return vmis.SerialConsole("talks", &kvcorev1.SerialConsoleOptions{ConnectionTimeout: time.Minute})
		},
		"vnc":             func() (kvcorev1.StreamInterface, error) { return vmis.VNC("talks", false) },
		"vnc, preserving": func() (kvcorev1.StreamInterface, error) { return vmis.VNC("talks", true) },
		"usbredir":        func() (kvcorev1.StreamInterface, error) { return vmis.USBRedir("talks") },
		"vsock":           func() (kvcorev1.StreamInterface, error) { return vmis.VSOCK("talks", &v1.VSOCKOptions{TargetPort: 22}) },
		"vsock without TLS": func() (kvcorev1.StreamInterface, error) {
			return vmis.VSOCK("talks", &v1.VSOCKOptions{TargetPort: 22, UseTLS: &plain})
		},
		"portforward":      func() (kvcorev1.StreamInterface, error) { return vmis.PortForward("talks", 22, "tcp") },
		"portforward, UDP": func() (kvcorev1.StreamInterface, error) { return vmis.PortForward("talks", 53, "udp") },
		"portforward of the VM": func() (kvcorev1.StreamInterface, error) {
			return kubevirt.VirtualMachine(namespace).PortForward("talks", 22, "tcp")
		},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := open()
			if err != nil {
				t.Fatal(err)
			}
			conn := stream.AsConn()
			defer func() { _ = conn.Close() }()
			if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
				t.Fatal(err)
			}
			for _, size := range []int{5, 200_000} {
				sent := bytes.Repeat([]byte("x"), size)
				written := make(chan error, 1)
				go func() {
					_, err := conn.Write(sent)
					written <- err
				}()
				got := make([]byte, size)
				if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
					t.Fatalf("%d bytes: %v", size, err)
				}
				// Wait for the write, which may return after the echo has been read: concurrent writes are not allowed.
				if err := <-written; err != nil {
					t.Fatalf("write %d bytes: %v", size, err)
				}
			}
		})
	}
}

// TestStream copies a stream like virtctl.
func TestStream(t *testing.T) {
	runVM(t, "typed", v1.RunStrategyAlways)
	stream, err := kubevirt.VirtualMachineInstance(namespace).SerialConsole("typed", nil)
	if err != nil {
		t.Fatal(err)
	}
	in, typing := io.Pipe()
	shown, out := io.Pipe()
	go func() { _ = stream.Stream(kvcorev1.StreamOptions{In: in, Out: out}) }()
	if _, err := typing.Write([]byte("root\n")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("root\n"))
	if _, err := io.ReadFull(shown, got); err != nil || string(got) != "root\n" {
		t.Errorf("got %q %v", got, err)
	}
	_ = typing.Close()
}

// TestConsoleTakeover expects what KubeVirt's conformance test 1591 does: the connection breaks, and the last line is
// the reason.
func TestConsoleTakeover(t *testing.T) {
	runVM(t, "taken", v1.RunStrategyAlways)
	stream, err := kubevirt.VirtualMachineInstance(namespace).SerialConsole("taken", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.AsConn().Close() }()
	in, typing := io.Pipe()
	var shown bytes.Buffer
	ended := make(chan error, 1)
	go func() { ended <- stream.Stream(kvcorev1.StreamOptions{In: in, Out: &shown}) }()
	// This message makes the agent close the console as if another client took it over.
	if _, err := typing.Write([]byte("take over\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("the stream ended with %v", err)
	}
	if !strings.HasSuffix(shown.String(), "another client took over the console\r\n") {
		t.Errorf("the client saw %q", shown.String())
	}
}

// TestErrorsOfStreams checks the error that a user gets. With code 400 the client would wait and retry.
func TestErrorsOfStreams(t *testing.T) {
	vmis := kubevirt.VirtualMachineInstance(namespace)
	runVM(t, "closed", v1.RunStrategyAlways, v1.VirtualMachineInstancePaused)
	for name, tc := range map[string]struct {
		code    int
		message string
	}{
		"none":   {http.StatusNotFound, `virtualmachineinstance.kubevirt.io "none" not found`},
		"closed": {http.StatusConflict, "VMI is paused"},
	} {
		_, err := vmis.PortForward(name, 22, "tcp")
		var streamError *kvcorev1.AsyncSubresourceError
		if !errors.As(err, &streamError) || streamError.GetStatusCode() != tc.code ||
			!strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: got %v, want %d %q", name, err, tc.code, tc.message)
		}
	}
}
