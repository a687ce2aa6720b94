// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

const (
	// ppmType and pngType are the MIME types of QEMU's images: libvirt requests PNG if QEMU supports it.
	ppmType = "image/x-portable-pixmap"
	pngType = "image/png"
	// maxSide and maxPixels bound a screen. A screen of 4096×4096 takes 64 MiB while it is sent.
	maxSide   = 8192
	maxPixels = 16 << 20
	// maxImage bounds an encoded image: four bytes for each pixel, and headers.
	maxImage = bytesPerPixel*maxPixels + 1<<20
	// bytesPerPixel is the size of a pixel in memory.
	bytesPerPixel = 4
	// pngDepth and pngInterlace are the offsets of the bit depth and the interlace method. Source: ISO/IEC 15948, 11.2.1.
	pngDepth, pngInterlace = 24, 28
)

// screenshot returns an image of the guest's screen.
func (s *Server) screenshot(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	move, err := boolParameter(r, agentapi.MoveCursorParameter)
	if err != nil {
		return err
	}
	// A VNC session can move the pointer itself, and another client of the VNC server disconnects some viewers.
	if move && !s.sessions.inUse(agentapi.VNC, v.vmi.UID) {
		if err := movePointer(r.Context(), v); err != nil {
			return err
		}
	}
	// The image is in memory until it is sent.
	release := func() {}
	defer func() { release() }()
	var screen image.Image
	err = v.conn.Screenshot(r.Context(), v.domain, func(mime string, from io.Reader) (err error) {
		screen, err = readImage(mime, io.LimitReader(from, maxImage), func(bytes int64) (err error) {
			release, err = s.Responses.Acquire(r.Context(), v.vmi.Namespace, bytes)
			return err
		})
		return err
	})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", pngType)
	w.WriteHeader(http.StatusOK)
	// A buffer would take as much memory again. An error means that the client has disconnected.
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	_ = encoder.Encode(w, screen)
	return nil
}

var errImage = errors.New("the screenshot is no image")

// readImage decodes, and so validates, an image that a launcher sent. Before it allocates the image it calls reserve
// with the size.
func readImage(mime string, from io.Reader, reserve func(bytes int64) error) (image.Image, error) {
	switch mime {
	case ppmType:
		return readPPM(bufio.NewReader(from), reserve)
	case pngType:
		return readPNG(from, reserve)
	default:
		return nil, fmt.Errorf("the screenshot is of type %q, neither %s nor %s", mime, pngType, ppmType)
	}
}

func readPNG(from io.Reader, reserve func(int64) error) (image.Image, error) {
	var head bytes.Buffer
	config, err := png.DecodeConfig(io.TeeReader(from, &head))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errImage, err)
	}
	if err := checkSize(config.Width, config.Height); err != nil {
		return nil, err
	}
	// QEMU's images have 8 bits for a color and are not interlaced. Others take up to four times the memory.
	if header := head.Bytes(); header[pngDepth] > 8 || header[pngInterlace] != 0 {
		return nil, fmt.Errorf("%w: it has %d bits for a color, interlaced by method %d", errImage, header[pngDepth],
			header[pngInterlace])
	}
	if err := reserve(bytesPerPixel * int64(config.Width*config.Height)); err != nil {
		return nil, err
	}
	screen, err := png.Decode(io.MultiReader(&head, from))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errImage, err)
	}
	return screen, nil
}

func checkSize(width, height int) error {
	if width > maxSide || height > maxSide || width*height > maxPixels {
		return fmt.Errorf("the screen of %d×%d pixels is too large for an image", width, height)
	}
	return nil
}

// readPPM reads an image as QEMU writes it: P6, width, height, 255, and three bytes for each pixel. Source: netpbm's
// ppm(5).
func readPPM(from *bufio.Reader, reserve func(int64) error) (*image.RGBA, error) {
	var magic string
	var width, height, depth int
	for _, field := range []any{&magic, &width, &height, &depth} {
		text, err := readWord(from)
		if err == nil {
			_, err = fmt.Sscan(text, field)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errImage, err)
		}
	}
	if magic != "P6" || depth != 255 || width < 1 || height < 1 {
		return nil, fmt.Errorf("%w: it begins with %q %d %d %d", errImage, magic, width, height, depth)
	}
	if err := checkSize(width, height); err != nil {
		return nil, err
	}
	if err := reserve(bytesPerPixel * int64(width*height)); err != nil {
		return nil, err
	}
	screen := image.NewRGBA(image.Rect(0, 0, width, height))
	row := make([]byte, 3*width)
	for y := range height {
		if _, err := io.ReadFull(from, row); err != nil {
			return nil, fmt.Errorf("%w: it ends too soon: %w", errImage, err)
		}
		line := screen.Pix[y*screen.Stride : (y+1)*screen.Stride]
		for x := range width {
			line[4*x], line[4*x+1], line[4*x+2], line[4*x+3] = row[3*x], row[3*x+1], row[3*x+2], 0xff
		}
	}
	return screen, nil
}

// maxWord bounds a word of a PPM header.
const maxWord = 16

// readWord reads a word and the white space after it.
func readWord(from *bufio.Reader) (string, error) {
	word := []byte{}
	for {
		b, err := from.ReadByte()
		switch {
		case err != nil:
			return "", err
		case b == ' ' || b == '\n' || b == '\t' || b == '\r':
			return string(word), nil
		case len(word) == maxWord:
			return "", errors.New("a word in its head is too long")
		}
		word = append(word, b)
	}
}

const (
	// pointerTimeout bounds the exchange with the VNC server.
	pointerTimeout = 5 * time.Second
	// unblankTime is how long a guest has to unblank its screen.
	unblankTime = 500 * time.Millisecond
)

// movePointer moves the pointer a little, so that a guest unblanks its screen. It connects to the VNC server, which
// must have no other client: QEMU disconnects clients that do not share.
func movePointer(ctx context.Context, v *runningVMI) error {
	screen, err := v.conn.OpenGraphics(ctx, v.domain)
	if err != nil {
		return err
	}
	defer func() { _ = screen.Close() }()
	if err := screen.SetDeadline(time.Now().Add(pointerTimeout)); err != nil {
		return err
	}
	if err := nudge(screen); err != nil {
		return fmt.Errorf("move the pointer: %w", err)
	}
	select {
	case <-time.After(unblankTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nudge sends two pointer events. It implements the part of the RFB protocol that they need. Source: RFC 6143, sections
// 7.1, 7.3 and 7.5.5.
func nudge(screen net.Conn) error {
	const (
		version      = "RFB 003.008\n"
		securityNone = 1
		shared       = 1
		pointerEvent = 5
	)
	read := func(n int) ([]byte, error) {
		buffer := make([]byte, n)
		_, err := io.ReadFull(screen, buffer)
		return buffer, err
	}
	server, err := read(len(version))
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(server, []byte("RFB ")) {
		return errors.New("the screen does not speak RFB")
	}
	if _, err := io.WriteString(screen, version); err != nil {
		return err
	}
	count, err := read(1)
	if err != nil {
		return err
	}
	kinds, err := read(int(count[0]))
	if err != nil {
		return err
	}
	if !bytes.Contains(kinds, []byte{securityNone}) {
		return errors.New("the screen requires a password")
	}
	if _, err := screen.Write([]byte{securityNone}); err != nil {
		return err
	}
	if result, err := read(4); err != nil || binary.BigEndian.Uint32(result) != 0 {
		return errors.Join(errors.New("the screen rejected the connection"), err)
	}
	if _, err := screen.Write([]byte{shared}); err != nil {
		return err
	}
	// The server's message starts with the size of the screen. The rest is not needed.
	size, err := read(4)
	if err != nil {
		return err
	}
	width, height := binary.BigEndian.Uint16(size), binary.BigEndian.Uint16(size[2:])
	for step := range uint16(2) {
		event := binary.BigEndian.AppendUint16([]byte{pointerEvent, 0}, width/2+step)
		if _, err := screen.Write(binary.BigEndian.AppendUint16(event, height/2+step)); err != nil {
			return err
		}
	}
	return nil
}
