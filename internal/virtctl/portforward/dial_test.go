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

func TestIgnoreClosed(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		ignored bool
	}{
		{"nothing", nil, true},
		{"closed by the guest", io.EOF, true},
		{"closed locally", net.ErrClosed, true},
		{"a normal closure with a reason", &subresources.ClosedError{Code: websocket.StatusNormalClosure, Reason: "the guest closed"}, true},
		{"virt-api shuts down", &subresources.ClosedError{Code: websocket.StatusGoingAway}, false},
		{"an error in a close frame", &subresources.ClosedError{Code: websocket.StatusInternalError, Reason: "connection refused"}, false},
		{"another error", errors.New("no route"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := ignoreClosed(tc.err); (got == nil) != tc.ignored {
				t.Errorf("got %v", got)
			}
		})
	}
}
