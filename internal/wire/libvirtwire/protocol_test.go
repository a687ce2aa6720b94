// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
)

func TestPassForwardsOnlyMigrations(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 100<<10)
	call := func(proc int32) []byte { return message(header{programRemote, proc, typeCall, 7, statusOK}, body) }
	response := message(header{programRemote, procMigratePrepare, typeReply, 7, statusOK}, body)
	alive := message(header{programKeepAlive, 1, typeMessage, 0, statusOK}, nil)
	withLength := func(n uint32) []byte {
		m := call(procConnectOpen)
		binary.BigEndian.PutUint32(m, n)
		return m
	}
	withVersion := call(procConnectOpen)
	binary.BigEndian.PutUint32(withVersion[8:], 2)

	for name, tc := range map[string]struct {
		direction Direction
		message   []byte
		passes    bool
	}{
		"opening":                           {MigrationCalls(), call(procConnectOpen), true},
		"preparing":                         {MigrationCalls(), call(procMigratePrepare), true},
		"finishing":                         {MigrationCalls(), call(procMigrateFinish), true},
		"a ping":                            {MigrationCalls(), alive, true},
		"a response":                        {MigrationResponses, response, true},
		"a keepalive response":              {MigrationResponses, alive, true},
		"destroying a domain":               {MigrationCalls(), call(procDomainDestroyFlags), false},
		"creating one (10)":                 {MigrationCalls(), call(10), false},
		"resuming one (28)":                 {MigrationCalls(), call(28), false},
		"looking for one":                   {MigrationCalls(), call(procDomainLookupByName), false},
		"migrating away (305)":              {MigrationCalls(), call(305), false},
		"a tunneled migration (304)":        {MigrationCalls(), call(304), false},
		"a command for the guest's agent":   {MigrationCalls(), message(header{programQEMU, procQEMUAgentCommand, typeCall, 7, statusOK}, nil), false},
		"a monitor command (qemu 1)":        {MigrationCalls(), message(header{programQEMU, 1, typeCall, 7, statusOK}, nil), false},
		"a stream":                          {MigrationCalls(), message(header{programRemote, procMigratePrepare, typeStream, 7, statusOK}, nil), false},
		"descriptors":                       {MigrationCalls(), message(header{programRemote, procConnectOpen, typeCallWithFDs, 7, statusOK}, nil), false},
		"a response from the client":        {MigrationCalls(), response, false},
		"a call from the daemon":            {MigrationResponses, call(procConnectOpen), false},
		"another version":                   {MigrationCalls(), withVersion, false},
		"shorter than its own header":       {MigrationCalls(), withLength(headerSize - 1), false},
		"longer than anything that is sent": {MigrationCalls(), withLength(maxMessage + 1), false},
		"as long as can be":                 {MigrationResponses, withLength(1<<32 - 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			good := alive
			var out bytes.Buffer
			err := Pass(&out, bytes.NewReader(slices.Concat(good, tc.message)), tc.direction)
			if tc.passes {
				if !errors.Is(err, io.EOF) || !bytes.Equal(out.Bytes(), slices.Concat(good, tc.message)) {
					t.Errorf("%d bytes passed, %v", out.Len(), err)
				}
				return
			}
			if !errors.Is(err, ErrRefused) || !bytes.Equal(out.Bytes(), good) {
				t.Errorf("%d bytes passed, %v", out.Len(), err)
			}
		})
	}
}

// A client that has migrated its guest must not be able to start anything else.
func TestClientMigratesOnce(t *testing.T) {
	call := func(proc int32) []byte { return message(header{programRemote, proc, typeCall, 7, statusOK}, nil) }
	migration := slices.Concat(call(procConnectOpen), call(procMigratePrepare), call(procMigrateFinish))
	for _, again := range []int32{procConnectOpen, procMigratePrepare, procMigrateFinish} {
		var out bytes.Buffer
		if err := Pass(&out, bytes.NewReader(slices.Concat(migration, call(again))), MigrationCalls()); !errors.Is(err,
			ErrRefused) || out.Len() != len(migration) {
			t.Errorf("procedure %d a second time: %v", again, err)
		}
	}
}

func TestTruncatedMessageIsAnError(t *testing.T) {
	whole := message(header{programRemote, procConnectOpen, typeCall, 7, statusOK}, []byte("body"))
	for _, n := range []int{1, headerSize - 1, headerSize, len(whole) - 1} {
		if err := Pass(io.Discard, bytes.NewReader(whole[:n]), MigrationCalls()); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}
