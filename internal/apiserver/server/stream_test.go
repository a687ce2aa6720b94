// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/coder/websocket"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/pki"
)

// openConsole opens the console of a VMI as an administrator.
func openConsole(name string) (*websocket.Conn, error) {
	GinkgoHelper()
	path := group + "/v1/namespaces/default/virtualmachineinstances/" + name + "/console"
	options := &websocket.DialOptions{
		HTTPClient: newProxyClient(proxy.ClientCertificate(pki.FrontProxyName)).client,
		HTTPHeader: http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}},
	}
	conn, _, err := websocket.Dial(context.Background(), "https://"+address+path, options) //nolint:bodyclose // the library closes it
	return conn, err
}

func runInstance(name string) {
	GinkgoHelper()
	vmi := builder.MakeVMI(name).Namespace("default").Obj()
	Expect(k8s.Create(context.Background(), vmi)).To(Succeed())
	vmi.Status.Phase, vmi.Status.NodeName = v1.Running, nodeAgent.Node
	Expect(k8s.Status().Update(context.Background(), vmi)).To(Succeed())
}

// getAsAdmin sends a GET request as the API server does for an administrator.
func getAsAdmin(path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-Remote-User", "admin")
	request.Header.Set("X-Remote-Group", "system:masters")
	return newProxyClient(proxy.ClientCertificate(pki.FrontProxyName)).client.Do(request)
}

// readMetrics returns /metrics as Prometheus reads it through the API server.
func readMetrics() (string, error) {
	response, err := getAsAdmin("/metrics")
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), nil
}

var _ = Describe("A stream", func() {
	ctx := context.Background()

	It("carries bytes after authentication and authorization", func() {
		runInstance("talks")
		conn, err := openConsole("talks")
		Expect(err).NotTo(HaveOccurred())
		Expect(conn.Write(ctx, websocket.MessageBinary, []byte("root\n"))).To(Succeed())
		_, echo, err := conn.Read(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(echo)).To(Equal("root\n"))
		Expect(readMetrics()).To(ContainSubstring(`kubevirt_console_active_connections{namespace="default",vmi="talks"} 1`))
		Expect(conn.Close(websocket.StatusNormalClosure, "")).To(Succeed())
	})

	// watch starts another server and opens a console of it.
	watch := func(name string) (*runningServer, *websocket.Conn) {
		GinkgoHelper()
		oldAddress, oldServing := address, serving
		DeferCleanup(func() { address, serving = oldAddress, oldServing })
		another := startServer(newAPI())
		runInstance(name)
		conn, err := openConsole(name)
		Expect(err).NotTo(HaveOccurred())
		return another, conn
	}

	It("is waited for when the server stops, while new ones go elsewhere", func() {
		stopping, conn := watch("watched")
		stopping.begin()
		Eventually(func() error {
			other, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err == nil {
				_ = other.Close()
			}
			return err
		}).WithTimeout(stopLimit).Should(HaveOccurred())
		Expect(conn.Write(ctx, websocket.MessageBinary, []byte("still here\n"))).To(Succeed())
		_, echo, err := conn.Read(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(echo)).To(Equal("still here\n"))
		Expect(stopping.done).NotTo(Receive())
		Expect(conn.Close(websocket.StatusNormalClosure, "")).To(Succeed())
		Eventually(stopping.done).WithTimeout(stopLimit).Should(Receive(BeNil()))
	})

	// expectCut expects a server to end after a change that ends its streams.
	expectCut := func(name string, change func(*runningServer)) {
		GinkgoHelper()
		stopping, conn := watch(name)
		ends := make(chan error, 1)
		go func() {
			_, _, err := conn.Read(ctx)
			ends <- err
		}()
		change(stopping)
		var end error
		Eventually(ends).WithTimeout(stopLimit).Should(Receive(&end))
		var closed websocket.CloseError
		Expect(errors.As(end, &closed)).To(BeTrue(), "%v", end)
		Expect(closed.Code).To(Equal(websocket.StatusGoingAway))
		Expect(closed.Reason).To(ContainSubstring("virt-api"))
		Eventually(stopping.done).WithTimeout(stopLimit).Should(Receive(BeNil()))
	}

	It("gets a close frame with the reason if it does not end in time", func() {
		expectCut("forgotten", func(s *runningServer) {
			s.begin()
			s.cut()
		})
	})

	It("gets it at once if the server cannot go on", func() {
		expectCut("broken", func(s *runningServer) {
			s.CutStreams()
			s.begin()
		})
	})
})
