// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"image/png"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// blueScreen paints the guest's first text screen.
const blueScreen = `printf '\033[44m\033[2J' >/dev/tty1` + "\n"

// rfbVersion is the first message of both sides of VNC. Source: RFC 6143, 7.1.1.
const rfbVersion = "RFB 003.008\n"

// expectScreen performs the handshake with the VNC server at an address and returns the size of the screen (RFC 6143,
// 7.1 to 7.3).
func expectScreen(ctx context.Context, address string) (width, height uint16) {
	GinkgoHelper()
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = connection.Close() }()
	Expect(connection.SetDeadline(time.Now().Add(shortTimeout))).To(Succeed())
	read := func(n int) []byte {
		GinkgoHelper()
		bytes := make([]byte, n)
		_, err := io.ReadFull(connection, bytes)
		Expect(err).NotTo(HaveOccurred())
		return bytes
	}
	write := func(bytes []byte) {
		GinkgoHelper()
		_, err := connection.Write(bytes)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(string(read(len(rfbVersion)))).To(Equal(rfbVersion))
	write([]byte(rfbVersion))
	const none = 1
	types := read(int(read(1)[0]))
	Expect(types).To(ContainElement(byte(none)), "the API authenticates clients, not the VNC server")
	write([]byte{none})
	Expect(read(4)).To(Equal([]byte{0, 0, 0, 0}))
	const shared = 1
	write([]byte{shared})
	size := read(4)
	return binary.BigEndian.Uint16(size), binary.BigEndian.Uint16(size[2:])
}

// vncProxy opens a local port that forwards to a guest's screen, and returns its address.
func vncProxy(ctx context.Context, namespace, name string) string {
	GinkgoHelper()
	t := startVirtctl(ctx, "vnc", "-n", namespace, name, "--proxy-only")
	var at struct {
		Port int `json:"port"`
	}
	Eventually(func() error { return json.Unmarshal(t.Out.Contents(), &at) }).
		WithContext(ctx).WithTimeout(shortTimeout).Should(Succeed())
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port))
}

// blueShare takes a screenshot and returns the share of blue pixels.
func blueShare(ctx context.Context, namespace, name string) float64 {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "screen.png")
	expectVirtctl(ctx, "vnc", "screenshot", "-n", namespace, name, "--file", file)
	data, err := os.Open(file)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = data.Close() }()
	screen, err := png.Decode(data)
	Expect(err).NotTo(HaveOccurred())
	bounds := screen.Bounds()
	Expect(bounds.Dx()).To(BeNumerically(">=", 640))
	blue := 0
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if r, g, b, _ := screen.At(x, y).RGBA(); b > 0x8000 && r < 0x4000 && g < 0x4000 {
				blue++
			}
		}
	}
	return float64(blue) / float64(bounds.Dx()*bounds.Dy())
}
