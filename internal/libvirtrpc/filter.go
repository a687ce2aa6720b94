// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtrpc

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrRefused is the end of a peer that asks for what it may not, or does not keep to the protocol.
var ErrRefused = errors.New("refused to pass on a message of libvirt's protocol")

// migrationCalls are all that the daemon of a migration's target is asked for by the client that migrates: to open and to
// close a connection, to take a guest, and that it is complete. Each is asked for once: who stays connected when the guest has come
// has no business with it any more.
var migrationCalls = []int32{procConnectOpen, procConnectClose, procMigratePrepare, procMigrateFinish}

// Direction is the way that messages go.
type Direction func(program uint32, proc int32, kind uint32) bool

// MigrationCalls lets through what a client sends that migrates one guest to the daemon, and nothing else. It is for one connection.
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

// MigrationAnswers lets through what the daemon sends to such a client: answers and the event that it goes away.
func MigrationAnswers(program uint32, _ int32, kind uint32) bool {
	switch program {
	case programKeepAlive:
		return kind == typeMessage
	case programRemote:
		return kind == typeReply || kind == typeMessage
	default:
		return false
	}
}

// Pass copies messages as long as they go in the given direction. It ends with the first one that does not, of which it passes
// nothing on, with io.EOF between two messages, or with what went wrong.
func Pass(to io.Writer, from io.Reader, direction Direction) error {
	// The longest is the XML of a domain with libvirt's cookie. It is passed on piece by piece: a peer cannot make us keep it.
	buffer := make([]byte, 32<<10)
	for {
		h, size, err := readHeader(from, buffer)
		if err != nil {
			return err
		}
		if !direction(h.program, h.proc, h.kind) {
			return fmt.Errorf("%w: program %#x, procedure %d, type %d is no part of a migration", ErrRefused, h.program, h.proc, h.kind)
		}
		if err := copyMessage(to, from, buffer, headerSize, size); err != nil {
			return err
		}
	}
}
