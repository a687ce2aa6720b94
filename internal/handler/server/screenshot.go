// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"strconv"

	"github.com/vireo-project/vireo/internal/agentapi"
)

const (
	// ppmType is the type of the images that QEMU makes.
	ppmType = "image/x-portable-pixmap"
	// maxSide and maxPixels bound a screen. A screen of 4096×4096 takes 64 MiB while it is sent.
	maxSide   = 8192
	maxPixels = 16 << 20
)

// screenshot answers with an image of the guest's screen.
func (s *Server) screenshot(w http.ResponseWriter, r *http.Request, t *target) error {
	move, err := boolParameter(r, agentapi.MoveCursorParameter)
	if err != nil {
		return err
	}
	// Who looks at the screen can move the pointer, and some viewers are thrown out by another client of the VNC server.
	if move && !s.sessions.held(agentapi.VNC, t.vmi.UID) {
		if err := movePointer(r.Context(), t); err != nil {
			return err
		}
	}
	var encoded bytes.Buffer
	err = t.machine.Screenshot(r.Context(), t.domain, func(mime string, from io.Reader) error {
		if mime != ppmType {
			return fmt.Errorf("the screenshot is of type %q, not %s", mime, ppmType)
		}
		screen, err := readPPM(bufio.NewReader(from))
		if err != nil {
			return err
		}
		encoder := png.Encoder{CompressionLevel: png.BestSpeed}
		return encoder.Encode(&encoded, screen)
	})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Content-Length", strconv.Itoa(encoded.Len()))
	w.WriteHeader(http.StatusOK)
	_, _ = encoded.WriteTo(w)
	return nil
}

var errImage = errors.New("the screenshot is no image")

// readPPM reads an image as QEMU writes it: P6, width, height, 255, and three bytes a pixel. Source: netpbm's ppm(5).
func readPPM(from *bufio.Reader) (*image.RGBA, error) {
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
	if width > maxSide || height > maxSide || width*height > maxPixels {
		return nil, fmt.Errorf("the screen of %d×%d pixels is too large for an image", width, height)
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

// maxWord bounds a word of a PPM's head.
const maxWord = 16

// readWord reads a word and the white space that ends it.
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
