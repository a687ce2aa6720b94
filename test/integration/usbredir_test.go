// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// The start of usbredir's protocol. Each side sends a hello first, in little endian: a header with type, length of the
// rest and ID, and then a version of 64 bytes and words with capabilities.
// Source: usbredir docs/usb-redirection-protocol.md.
const (
	usbRedirHello        = 0
	usbRedirHeaderSize   = 12
	usbRedirVersionSize  = 64
	usbRedirHelloTimeout = 20 * time.Second
)

// readUSBHello reads QEMU's first message on a connection, and returns its version.
func readUSBHello(from net.Conn) string {
	GinkgoHelper()
	Expect(from.SetReadDeadline(time.Now().Add(usbRedirHelloTimeout))).To(Succeed())
	header := make([]byte, usbRedirHeaderSize)
	_, err := io.ReadFull(from, header)
	Expect(err).NotTo(HaveOccurred())
	Expect(binary.LittleEndian.Uint32(header)).To(BeEquivalentTo(usbRedirHello))
	size := binary.LittleEndian.Uint32(header[4:])
	Expect(size).To(And(BeNumerically(">=", usbRedirVersionSize), BeNumerically("<", 1024)))
	hello := make([]byte, size)
	_, err = io.ReadFull(from, hello)
	Expect(err).NotTo(HaveOccurred())
	version, _, _ := bytes.Cut(hello[:usbRedirVersionSize], []byte{0})
	return string(version)
}

// listenerUser returns the user of the process that listens at the other end of a connection.
func listenerUser(conn net.Conn) uint32 {
	GinkgoHelper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	var peer *unix.Ucred
	Expect(raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })).
		To(Succeed())
	Expect(err).NotTo(HaveOccurred())
	return peer.Uid
}

var _ = Describe("USB redirection", Label("libvirt"), func() {
	ctx := context.Background()

	It("connects a client to each USB port of the guest, and another one after the first has disconnected", func() {
		p := newPod()
		defined := p.start("usb-redirection")
		conn := p.dial()
		plugged := make([]net.Conn, launcherpod.USBPorts)
		for port := range plugged {
			var err error
			plugged[port], err = conn.OpenUSB(ctx, port)
			Expect(err).NotTo(HaveOccurred())
			// One of them is already closed.
			DeferCleanup(func() { _ = plugged[port].Close() })
			Expect(readUSBHello(plugged[port])).To(HavePrefix("qemu usb-redir guest"))
			Expect(listenerUser(plugged[port])).To(BeEquivalentTo(launcherpod.QEMUUser),
				"the agent's check of the peer would refuse it")
		}

		By("connecting another client to a free port")
		const port = 1
		Expect(plugged[port].Close()).To(Succeed())
		next, err := conn.OpenUSB(ctx, port)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(next.Close)
		Expect(readUSBHello(next)).To(HavePrefix("qemu usb-redir guest"))

		By("closing the connections when the guest ends, and refusing new ones")
		Expect(defined.Destroy()).To(Succeed())
		_, err = io.Copy(io.Discard, next)
		Expect(err).NotTo(HaveOccurred())
		_, err = conn.OpenUSB(ctx, port)
		Expect(err).To(MatchError(hypervisor.ErrNotRunning))
	})
})
