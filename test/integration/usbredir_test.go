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

// The beginning of usbredir's protocol. Each side says hello first, in little endian: a header with the kind, the length of
// what follows and an id, and then a version of 64 bytes and words with capabilities.
// Source: usbredir docs/usb-redirection-protocol.md.
const (
	usbRedirHello         = 0
	usbRedirHeaderSize    = 12
	usbRedirVersionSize   = 64
	usbRedirHelloPatience = 20 * time.Second
)

// readUSBHello reads what QEMU says first to who plugs in, and returns its version.
func readUSBHello(from net.Conn) string {
	GinkgoHelper()
	Expect(from.SetReadDeadline(time.Now().Add(usbRedirHelloPatience))).To(Succeed())
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

// listenerUser is the user of the process that made a connection's other end listen.
func listenerUser(conn net.Conn) uint32 {
	GinkgoHelper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	var peer *unix.Ucred
	Expect(raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })).To(Succeed())
	Expect(err).NotTo(HaveOccurred())
	return peer.Uid
}

var _ = Describe("USB redirection", Label("libvirt"), func() {
	ctx := context.Background()

	It("plugs a client into each port of the guest, and the next one after it", func() {
		p := newPod()
		defined := p.start("usb-redirection")
		conn := p.dial()
		plugged := make([]net.Conn, launcherpod.USBPorts)
		for port := range plugged {
			var err error
			plugged[port], err = conn.OpenUSB(ctx, port)
			Expect(err).NotTo(HaveOccurred())
			// One of them is closed before.
			DeferCleanup(func() { _ = plugged[port].Close() })
			Expect(readUSBHello(plugged[port])).To(HavePrefix("qemu usb-redir guest"))
			Expect(listenerUser(plugged[port])).To(BeEquivalentTo(launcherpod.QEMUUser), "the agent's check of the peer would refuse it")
		}

		By("a client that leaves, whose port is the next one's")
		const left = 1
		Expect(plugged[left].Close()).To(Succeed())
		next, err := conn.OpenUSB(ctx, left)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(next.Close)
		Expect(readUSBHello(next)).To(HavePrefix("qemu usb-redir guest"))

		By("the end of the guest, which ends the connections and leaves no port")
		Expect(defined.Destroy()).To(Succeed())
		_, err = io.Copy(io.Discard, next)
		Expect(err).NotTo(HaveOccurred())
		_, err = conn.OpenUSB(ctx, left)
		Expect(err).To(MatchError(hypervisor.ErrNotRunning))
	})
})
