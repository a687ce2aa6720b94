// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"bytes"
	"errors"
	"testing"
)

func TestParamsAreTypedParameters(t *testing.T) {
	var e encoder
	if err := e.params([]Param{{ParamDisksPort, int32(49153)}, {ParamBandwidth, uint64(1) << 33},
		{ParamDisks, "vda"}}); err != nil {
		t.Fatal(err)
	}
	d := decoder{buf: e.buf}
	if n := d.u32(); n != 3 {
		t.Fatalf("%d parameters", n)
	}
	if name, kind, value := d.str(), d.u32(), d.i32(); name != "disks_port" || kind != 1 || value != 49153 {
		t.Errorf("got %s, %d, %d", name, kind, value)
	}
	if name, kind, high, low := d.str(), d.u32(), d.u32(), d.u32(); name != "bandwidth" || kind != 4 || high != 2 ||
		low != 0 {
		t.Errorf("got %s, %d, %d, %d", name, kind, high, low)
	}
	if name, kind, value := d.str(), d.u32(), d.str(); name != "migrate_disks" || kind != 7 || value != "vda" {
		t.Errorf("got %s, %d, %s", name, kind, value)
	}
	if d.err != nil || len(d.buf) != 0 {
		t.Errorf("%v, %d bytes are left", d.err, len(d.buf))
	}
	if err := e.params([]Param{{"x", 1.5}}); !errors.Is(err, errParam) {
		t.Errorf("got %v", err)
	}
}

func TestOpaque(t *testing.T) {
	for _, want := range [][]byte{nil, {0}, []byte("<qemu-migration/>\x00")} {
		var e encoder
		e.opaque(want)
		e.u32(7)
		d := decoder{buf: e.buf}
		if got := d.opaque(); !bytes.Equal(got, want) || d.u32() != 7 || d.err != nil {
			t.Errorf("got %q, %v, want %q", got, d.err, want)
		}
	}
	d := decoder{buf: []byte{0xff, 0xff, 0xff, 0xff}}
	if got := d.opaque(); got != nil || d.err == nil {
		t.Errorf("a length beyond the message gives %d bytes and %v", len(got), d.err)
	}
}
