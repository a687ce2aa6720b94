// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/agent/media/overlay"
)

// An agent of another node may send any text. What is refused takes little memory before that.
func TestBitmapsWithManyElementsAreNotDecoded(t *testing.T) {
	for name, element := range map[string]string{
		"disks":   `{},`,
		"nothing": `null,`,
		"bitmaps": `{"bitmaps":[` + strings.Repeat(`{},`, 1000) + `{}]},`,
		"parts":   `{"bitmaps":[{"parts":[` + strings.Repeat(`{},`, 1000) + `{}]}]},`,
	} {
		body := append([]byte{'['}, bytes.Repeat([]byte(element), (maxBitmapsBody-8)/len(element))...)
		body = append(bytes.TrimSuffix(body, []byte(",")), ']')
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decodeBitmaps(bytes.NewReader(body))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "commas") {
			t.Errorf("%s: %v", name, err)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 4<<20 {
			t.Errorf("%s: %d bytes were allocated", name, allocated)
		}
	}
}

func TestMostBitmapsAreDecoded(t *testing.T) {
	const disks = 32
	sent := make([]DiskBitmaps, disks)
	for i := range sent {
		sent[i] = DiskBitmaps{Volume: fmt.Sprintf("volume-%d", i), Bytes: 1 << 50}
		for k := range overlay.MaxBitmaps {
			bitmap := overlay.Bitmap{Name: fmt.Sprintf("bitmap-%d", k), Granularity: 16}
			for n := range overlay.MaxBits / overlay.PartBytes / disks / overlay.MaxBitmaps {
				bitmap.Parts = append(bitmap.Parts, overlay.Part{At: uint64(n) * overlay.PartBytes, Bits: bytes.Repeat([]byte{0xff}, overlay.PartBytes)})
			}
			sent[i].Bitmaps = append(sent[i].Bitmaps, bitmap)
		}
	}
	body, err := json.Marshal(sent)
	if err != nil || len(body) > maxBitmapsBody {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	if received, err := decodeBitmaps(bytes.NewReader(body)); err != nil || !reflect.DeepEqual(received, sent) {
		t.Errorf("it was not received as it was sent: %v", err)
	}
}
