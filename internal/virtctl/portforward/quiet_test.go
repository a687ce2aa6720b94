// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/coder/websocket"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

func TestQuiet(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		quiet bool
	}{
		{"nothing", nil, true},
		{"the guest's end", io.EOF, true},
		{"our end", net.ErrClosed, true},
		{"a good end that says what ended", &subresources.ClosedError{Code: websocket.StatusNormalClosure, Reason: "the guest closed"}, true},
		{"an end of virt-api", &subresources.ClosedError{Code: websocket.StatusGoingAway}, false},
		{"a break", &subresources.ClosedError{Code: websocket.StatusInternalError, Reason: "connection refused"}, false},
		{"anything else", errors.New("no route"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := quiet(tc.err); (got == nil) != tc.quiet {
				t.Errorf("got %v", got)
			}
		})
	}
}
