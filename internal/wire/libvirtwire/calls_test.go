// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// record encodes the statistics of one domain.
func record(domain Domain, params func(e *encoder) uint32) []byte {
	var inner, e encoder
	count := params(&inner)
	e.domain(domain)
	e.u32(count)
	return append(e.buf, inner.buf...)
}

func (e *encoder) u64(v uint64) { e.buf = binary.BigEndian.AppendUint64(e.buf, v) }

func TestStats(t *testing.T) {
	other := testDomain
	other.Name = "other"
	var body encoder
	body.u32(2)
	body.buf = append(body.buf, record(other, func(e *encoder) uint32 {
		e.str("cpu.time")
		e.u32(paramULong)
		e.u64(1)
		return 1
	})...)
	body.buf = append(body.buf, record(testDomain, func(e *encoder) uint32 {
		minus := -7
		for name, write := range map[string]func(){
			"int":    func() { e.u32(paramInt); e.i32(-1) },
			"uint":   func() { e.u32(paramUInt); e.u32(math.MaxUint32) },
			"long":   func() { e.u32(paramLLong); e.u64(uint64(minus)) },
			"ulong":  func() { e.u32(paramULong); e.u64(1 << 40) },
			"double": func() { e.u32(paramDouble); e.u64(math.Float64bits(0.5)) },
			"bool":   func() { e.u32(paramBoolean); e.i32(1) },
			"text":   func() { e.u32(paramString); e.str("tap0") },
		} {
			e.str(name)
			write()
		}
		return 7
	})...)
	c, d := newPair(t)
	go func() {
		proc, serial, args := d.receive()
		dec := decoder{buf: args}
		domains, groups, flags := dec.u32(), dec.u32(), dec.u32()
		if proc != procGetAllDomainStats || domains != 0 || groups != uint32(StatsCPU|StatsBlock) || flags&(1<<29) == 0 {
			t.Errorf("procedure %d for %d domains, groups %b, flags %b", proc, domains, groups, flags)
		}
		d.send(proc, typeReply, serial, statusOK, body.buf)
	}()
	got := map[string]any{}
	if err := c.Stats(t.Context(), testDomain.Name, StatsCPU|StatsBlock, func(name string, number float64, text string) {
		got[name] = number
		if text != "" {
			got[name] = text
		}
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"int": -1.0, "uint": float64(math.MaxUint32), "long": -7.0, "ulong": float64(1 << 40), "double": 0.5, "bool": 1.0, "text": "tap0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A daemon that claims to send billions of statistics costs no more than what it sends.
func TestInvalidStats(t *testing.T) {
	for name, body := range map[string][]byte{
		"nothing":         nil,
		"many domains":    {0xff, 0xff, 0xff, 0xff},
		"many statistics": append([]byte{0, 0, 0, 1}, record(testDomain, func(*encoder) uint32 { return math.MaxUint32 })...),
		"an unknown type": append([]byte{0, 0, 0, 1}, record(testDomain, func(e *encoder) uint32 { e.str("a"); e.u32(99); return 1 })...),
	} {
		t.Run(name, func(t *testing.T) {
			c, d := newPair(t)
			go func() {
				proc, serial, _ := d.receive()
				d.send(proc, typeReply, serial, statusOK, body)
			}()
			if err := c.Stats(t.Context(), testDomain.Name, StatsCPU,
				func(string, float64, string) { t.Error("a statistic was read") }); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestStartDirtyRate(t *testing.T) {
	c, d := newPair(t)
	go func() {
		proc, serial, args := d.receive()
		dec := decoder{buf: args}
		if got, seconds := dec.domain(), dec.i32(); proc != procStartDirtyRateCalc || got != testDomain || seconds != 1 ||
			len(dec.buf) != 4 {
			t.Errorf("procedure %d for %+v, %d seconds", proc, got, seconds)
		}
		d.send(proc, typeReply, serial, statusOK, nil)
	}()
	if err := c.StartDirtyRate(t.Context(), testDomain, 1); err != nil {
		t.Error(err)
	}
}

func FuzzStats(f *testing.F) {
	f.Add(append([]byte{0, 0, 0, 1}, record(testDomain, func(e *encoder) uint32 {
		e.str("net.0.name")
		e.u32(paramString)
		e.str("tap0")
		return 1
	})...))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, d := newPair(t)
		go func() {
			proc, serial, _ := d.receive()
			d.send(proc, typeReply, serial, statusOK, body)
		}()
		read := 0
		err := c.Stats(t.Context(), testDomain.Name, StatsCPU,
			func(name string, _ float64, text string) { read += len(name) + len(text) + 8 })
		if read > len(body) {
			t.Errorf("%d bytes became %d", len(body), read)
		}
		if errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}
