// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"image/color"
	"io"
)

// Screen is a guest's screen: a VNC server (RFB 3.8, RFC 6143) without a password.
type Screen struct {
	Width, Height int
	// Pixel returns the color of a pixel.
	Pixel func(x, y int) color.RGBA
	// Key is called with each pressed key, as an X11 key symbol.
	Key func(symbol uint32)
}

// Messages of a client, by their first byte.
const (
	setPixelFormat, setEncodings, updateRequest, keyEvent, pointerEvent, cutText = 0, 2, 3, 4, 5, 6
)

// layouts describes messages after their first byte: a part of a fixed size, which may contain a count, and that many
// items of the size each.
var layouts = map[byte]struct{ size, countAt, countSize, each int }{
	setPixelFormat: {size: 19},
	setEncodings:   {3, 1, 2, 4},
	updateRequest:  {size: 9},
	keyEvent:       {size: 7},
	pointerEvent:   {size: 5},
	cutText:        {7, 3, 4, 1},
}

// shifts are the bit positions of a pixel's colors.
type shifts struct{ red, green, blue uint8 }

// Serve serves one client until it disconnects.
func (s *Screen) Serve(conn io.ReadWriter) error {
	in := bufio.NewReader(conn)
	if err := s.greet(in, conn); err != nil {
		return err
	}
	format := shifts{16, 8, 0}
	drawn := false
	for {
		kind, message, err := receive(in)
		if err != nil {
			return err
		}
		switch {
		case kind == setPixelFormat:
			format = shifts{message[13], message[14], message[15]}
		case kind == keyEvent && message[0] != 0 && s.Key != nil:
			s.Key(binary.BigEndian.Uint32(message[3:]))
		case kind == updateRequest && !drawn: // The screen never changes.
			drawn = true
			if _, err := conn.Write(s.update(format)); err != nil {
				return err
			}
		}
	}
}

// receive reads a message.
func receive(in *bufio.Reader) (kind byte, message []byte, err error) {
	if kind, err = in.ReadByte(); err != nil {
		return 0, nil, err
	}
	form, known := layouts[kind]
	if !known {
		return 0, nil, fmt.Errorf("message %d of a VNC client is not known", kind)
	}
	message = make([]byte, form.size)
	if _, err = io.ReadFull(in, message); err != nil {
		return 0, nil, err
	}
	count := 0
	for _, b := range message[form.countAt : form.countAt+form.countSize] {
		count = count<<8 | int(b)
	}
	_, err = in.Discard(count * form.each)
	return kind, message, err
}

// greet negotiates the version and no security, and sends the screen's size and format.
func (s *Screen) greet(in *bufio.Reader, out io.Writer) error {
	if _, err := io.WriteString(out, "RFB 003.008\n"); err != nil {
		return err
	}
	version := make([]byte, 12)
	if _, err := io.ReadFull(in, version); err != nil {
		return err
	}
	if string(version) != "RFB 003.008\n" {
		return fmt.Errorf("the client's version is %q", version)
	}
	if _, err := out.Write([]byte{1, 1}); err != nil { // one type: None
		return err
	}
	if chosen, err := in.ReadByte(); err != nil || chosen != 1 {
		return errors.Join(errors.New("the client did not choose None"), err)
	}
	if _, err := out.Write([]byte{0, 0, 0, 0}); err != nil {
		return err
	}
	if _, err := in.ReadByte(); err != nil { // shared
		return err
	}
	const name = "test"
	head := binary.BigEndian.AppendUint16(nil, uint16(s.Width))
	head = binary.BigEndian.AppendUint16(head, uint16(s.Height))
	head = append(head, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0)
	head = binary.BigEndian.AppendUint32(head, uint32(len(name)))
	_, err := out.Write(append(head, name...))
	return err
}

// update returns the whole screen as one raw rectangle.
func (s *Screen) update(format shifts) []byte {
	message := []byte{0, 0, 0, 1, 0, 0, 0, 0}
	message = binary.BigEndian.AppendUint16(message, uint16(s.Width))
	message = binary.BigEndian.AppendUint16(message, uint16(s.Height))
	message = binary.BigEndian.AppendUint32(message, 0)
	for y := range s.Height {
		for x := range s.Width {
			c := s.Pixel(x, y)
			pixel := uint32(c.R)<<format.red | uint32(c.G)<<format.green | uint32(c.B)<<format.blue
			message = binary.LittleEndian.AppendUint32(message, pixel)
		}
	}
	return message
}
