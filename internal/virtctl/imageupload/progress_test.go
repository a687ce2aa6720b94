// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"io"
	"strings"
	"testing"
	"time"
)

// progressOf returns the output for an upload of 4 MiB, which stops after some pieces of 64 KiB. Each takes the time
// piece.
func progressOf(terminal bool, piece time.Duration, pieces int) string {
	const size, part = 4 << 20, 64 << 10
	var out strings.Builder
	now := time.Unix(0, 0)
	p := newProgress(&out, size, func() time.Time { return now })
	p.terminal = terminal
	body := p.watch(strings.NewReader(strings.Repeat("x", size)))
	for range pieces {
		now = now.Add(piece)
		if _, err := io.ReadFull(body, make([]byte, part)); err != nil {
			panic(err)
		}
	}
	p.finish()
	_, _ = body.Read(make([]byte, part))
	return out.String()
}

func TestProgressLines(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(progressOf(false, 10*time.Millisecond, 64)), "\n")
	if len(lines) != 10 || lines[0] != "448.0 KiB of 4.0 MiB, 10 %, 6.2 MiB/s" ||
		lines[9] != "4.0 MiB of 4.0 MiB, 100 %, 6.2 MiB/s" {
		t.Errorf("a quick upload shows %d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	// A slow one shows more, and where it broke off.
	lines = strings.Split(strings.TrimSpace(progressOf(false, 31*time.Second, 3)), "\n")
	if len(lines) != 3 || lines[2] != "192.0 KiB of 4.0 MiB, 4 %, 2.1 KiB/s" {
		t.Errorf("a slow upload shows:\n%s", strings.Join(lines, "\n"))
	}
	if got := progressOf(false, time.Millisecond, 0); got != "" {
		t.Errorf("an upload that did not begin shows %q", got)
	}
}

func TestProgressTerminal(t *testing.T) {
	got := progressOf(true, 50*time.Millisecond, 64)
	if strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\r4.0 MiB of 4.0 MiB, 100 %, 1.2 MiB/s\x1b[K\n") {
		t.Errorf("not one line: %q", got)
	}
	if drawn := strings.Count(got, "\r"); drawn != 16 {
		t.Errorf("drawn %d times in 3.2 s", drawn)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10 << 30: "10.0 GiB",
		3 << 50: "3072.0 TiB"} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
