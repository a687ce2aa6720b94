// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// frame is a message of libvirt's protocol without a body.
func frame(program, proc, kind uint32) []byte {
	var out []byte
	for _, word := range []uint32{28, program, 1, proc, kind, 0, 0} {
		out = binary.BigEndian.AppendUint32(out, word)
	}
	return out
}

// passed returns how a connection ends after a peer has sent these messages and then nothing.
func passed(t *testing.T, messages ...[]byte) <-chan error {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	ended := make(chan error, 1)
	go func() {
		ended <- libvirtwire.Pass(io.Discard, here, withDeadline(here, peerTimeout, libvirtwire.MigrationCalls()))
	}()
	for _, m := range messages {
		if _, err := there.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	return ended
}

func TestTunnelOfSilentPeerIsClosed(t *testing.T) {
	const remote, keepAlive, open, ping, call, message = 0x20008086, 0x6b656570, 1, 1, 0, 2
	synctest.Test(t, func(t *testing.T) {
		silent := passed(t, frame(remote, open, call), frame(keepAlive, ping, message))
		older := passed(t, frame(remote, open, call))
		time.Sleep(2 * peerTimeout)
		synctest.Wait()
		select {
		case err := <-silent:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("the connection stays open without keep-alives")
		}
		select {
		case err := <-older:
			t.Errorf("an older agent, which sends no keep-alives, lost the connection: %v", err)
		default:
		}
	})
}
