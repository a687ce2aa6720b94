// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errShort means that a message is shorter than its content.
var errShort = errors.New("the message is too short")

// maxString is the limit for a string from the daemon in bytes. libvirt's own limit (REMOTE_STRING_MAX) is 4 MiB; names and
// errors are far shorter.
const maxString = 1 << 20

// encoder writes XDR (RFC 4506): big endian, everything padded to four bytes.
type encoder struct{ buf []byte }

func (e *encoder) u32(v uint32) { e.buf = binary.BigEndian.AppendUint32(e.buf, v) }

func (e *encoder) i32(v int32) { e.u32(uint32(v)) }

func (e *encoder) fixed(b []byte) {
	e.buf = append(e.buf, b...)
	for len(e.buf)%4 != 0 {
		e.buf = append(e.buf, 0)
	}
}

func (e *encoder) str(s string) {
	e.u32(uint32(len(s)))
	e.fixed([]byte(s))
}

// optionalStr writes a remote_string, which is absent if the string is empty.
func (e *encoder) optionalStr(s string) {
	if s == "" {
		e.u32(0)
		return
	}
	e.u32(1)
	e.str(s)
}

// decoder reads XDR. After the first error, which is in err, every read returns a zero value.
type decoder struct {
	buf []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	padded := (n + 3) &^ 3
	if n < 0 || padded > len(d.buf) {
		d.err = errShort
		return nil
	}
	b := d.buf[:n]
	d.buf = d.buf[padded:]
	return b
}

func (d *decoder) u32() uint32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (d *decoder) i32() int32 { return int32(d.u32()) }

func (d *decoder) str() string {
	n := d.u32()
	if d.err == nil && n > maxString {
		d.err = fmt.Errorf("a string of %d bytes passes the limit of %d", n, maxString)
	}
	return string(d.take(int(n)))
}

// optionalStr reads a remote_string: a flag and, if it is set, a string.
func (d *decoder) optionalStr() string {
	if d.u32() == 0 {
		return ""
	}
	return d.str()
}
