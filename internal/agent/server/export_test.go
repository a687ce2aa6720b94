// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"net"
)

// DialVSOCK replaces the function that dials guests.
func (s *Server) DialVSOCK(dial func(ctx context.Context, cid, port uint32) (net.Conn, error)) {
	s.dialVSOCK = dial
}
