// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"context"
	"errors"
	"net"

	"github.com/coder/websocket"
)

// CloseWith closes a websocket: normally without an error, with the code and reason of a websocket.CloseError, and
// without a close frame for other errors.
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

// Conn returns a connection that reads and writes the websocket's binary messages.
func Conn(ctx context.Context, socket *websocket.Conn) net.Conn {
	socket.SetReadLimit(1 << 20)
	return websocket.NetConn(ctx, socket, websocket.MessageBinary)
}
