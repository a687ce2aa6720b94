// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctltest

import (
	"context"
	"errors"
	"net"

	"github.com/coder/websocket"
)

// CloseWith ends a websocket with the code and reason of an error, or as a good end.
func CloseWith(socket *websocket.Conn, err error) {
	var closed websocket.CloseError
	switch {
	case err == nil:
		_ = socket.Close(websocket.StatusNormalClosure, "")
	case errors.As(err, &closed):
		_ = socket.Close(closed.Code, closed.Reason)
	default:
		_ = socket.CloseNow()
	}
}

// Conn is a websocket's bytes.
func Conn(ctx context.Context, socket *websocket.Conn) net.Conn {
	socket.SetReadLimit(1 << 20)
	return websocket.NetConn(ctx, socket, websocket.MessageBinary)
}
