// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrRefused means that a peer sent a message that it may not send, or that violates the protocol.
var ErrRefused = errors.New("refused to forward a message of libvirt's protocol")

// migrationCalls are all calls to the daemon of a migration's target: to open and close a connection, to prepare the guest, and
// to complete it. Each is allowed once, so that a source that stays connected cannot affect the guest after its migration.
var migrationCalls = []int32{procConnectOpen, procConnectClose, procMigratePrepare, procMigrateFinish}

// Direction reports whether a message may be forwarded in one direction.
type Direction func(program uint32, proc int32, kind uint32) bool

// MigrationCalls returns a Direction for one connection that allows only the calls of a client that migrates one guest to the
// daemon.
func MigrationCalls() Direction {
	left := slices.Clone(migrationCalls)
	return func(program uint32, proc int32, kind uint32) bool {
		switch program {
		case programKeepAlive:
			return kind == typeMessage
		case programRemote:
			i := slices.Index(left, proc)
			if kind != typeCall || i < 0 {
				return false
			}
			left = slices.Delete(left, i, i+1)
			return true
		default:
			return false
		}
	}
}

// MigrationResponses is a Direction that allows what the daemon sends to such a client: responses and the event that it closes
// the connection.
func MigrationResponses(program uint32, _ int32, kind uint32) bool {
	switch program {
	case programKeepAlive:
		return kind == typeMessage
	case programRemote:
		return kind == typeReply || kind == typeMessage
	default:
		return false
	}
}

// Pass forwards messages as long as the direction allows them. It returns ErrRefused at the first other message, of which it
// forwards nothing, io.EOF if the connection ends between two messages, or another error.
func Pass(to io.Writer, from io.Reader, direction Direction) error {
	// The longest message has the XML of a domain with libvirt's cookie. It is forwarded piece by piece, so it is never in
	// memory.
	buffer := make([]byte, 32<<10)
	for {
		h, size, err := readHeader(from, buffer)
		if err != nil {
			return err
		}
		if !direction(h.program, h.proc, h.kind) {
			return fmt.Errorf("%w: program %#x, procedure %d, type %d is not part of a migration", ErrRefused, h.program, h.proc, h.kind)
		}
		if err := copyMessage(to, from, buffer, headerSize, size); err != nil {
			return err
		}
	}
}
