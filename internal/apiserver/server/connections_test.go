// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/coder/websocket"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/test/pki"
)

var _ = Describe("Connections to virt-api", func() {
	It("of clients that do not authenticate are limited, and close none on which a user's request is served", func() {
		runInstance("flooded")
		console, err := openConsole("flooded")
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = console.CloseNow() }()
		apiServer := newProxyClient(proxy.ClientCertificate(pki.FrontProxyName))

		// More than the limit, from the address from which the stream is open.
		var flood net.Dialer
		var idle []net.Conn
		defer func() {
			for _, conn := range idle {
				_ = conn.Close()
			}
		}()
		for range 2100 {
			conn, err := flood.DialContext(GinkgoT().Context(), "tcp", address)
			Expect(err).NotTo(HaveOccurred())
			idle = append(idle, conn)
		}
		Expect(apiServer.get("/apis")).To(Equal(200))

		// The oldest ones are closed.
		Expect(idle[0].SetReadDeadline(time.Now().Add(startLimit))).To(Succeed())
		_, err = idle[0].Read(make([]byte, 1))
		Expect(err).To(HaveOccurred())
		Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(BeFalse(), "it is open: %v", err)
		open := 0
		for _, conn := range idle {
			Expect(conn.SetReadDeadline(time.Now().Add(time.Millisecond))).To(Succeed())
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				open++
			} else if !errors.Is(err, io.EOF) {
				Expect(err).To(MatchError(ContainSubstring("reset")))
			}
		}
		Expect(open).To(BeNumerically("<", 2048))

		// The stream of before works.
		Expect(console.Write(GinkgoT().Context(), websocket.MessageBinary, []byte("still here\n"))).To(Succeed())
		_, echo, err := console.Read(GinkgoT().Context())
		Expect(err).NotTo(HaveOccurred())
		Expect(string(echo)).To(Equal("still here\n"))
	})
})
