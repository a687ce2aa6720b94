// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// frame is a message of libvirt's protocol without a body.
func frame(program, proc, kind uint32) []byte {
	var out []byte
	for _, word := range []uint32{28, program, 1, proc, kind, 0, 0} {
		out = binary.BigEndian.AppendUint32(out, word)
	}
	return out
}

// passed is how a connection ends on which a peer says these things, and then nothing.
func passed(t *testing.T, messages ...[]byte) <-chan error {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	ended := make(chan error, 1)
	go func() {
		ended <- libvirtrpc.Pass(io.Discard, here, heard(here, peerPatience, libvirtrpc.MigrationCalls()))
	}()
	for _, m := range messages {
		if _, err := there.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	return ended
}

func TestAPeerThatFallsSilentLosesItsPlace(t *testing.T) {
	const remote, keepAlive, open, ping, call, message = 0x20008086, 0x6b656570, 1, 1, 0, 2
	synctest.Test(t, func(t *testing.T) {
		fellSilent := passed(t, frame(remote, open, call), frame(keepAlive, ping, message))
		neverShowed := passed(t, frame(remote, open, call)) // an older agent
		time.Sleep(2 * peerPatience)
		synctest.Wait()
		select {
		case err := <-fellSilent:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("one that has shown that it is there, and does not any more, keeps the connection")
		}
		select {
		case err := <-neverShowed:
			t.Errorf("one that never showed it lost the connection: %v", err)
		default:
		}
	})
}
