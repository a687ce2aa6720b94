// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtrpc

import (
	"fmt"
	"time"
)

// programKeepAlive asks whether the other side is there (src/rpc/virkeepaliveprotocol.x in libvirt). libvirtd answers in its event
// loop, whatever its workers wait for.
const (
	programKeepAlive = 0x6b656570
	keepAlivePing    = 1
)

// KeepAlive ends the connection when the daemon, which is asked for a sign of life in the given steps, has said nothing at all for
// as long as patience. A call that may rightly take hours fails then with ErrClosed. It is called once, and ends with the connection.
func (c *Client) KeepAlive(interval, patience time.Duration) {
	c.heard.Store(time.Now().UnixNano())
	go func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-c.done:
				return
			case <-tick.C:
			}
			if time.Since(time.Unix(0, c.heard.Load())) >= patience || c.ping(patience) != nil {
				c.silent.CompareAndSwap(nil, &patience)
				c.Close()
				return
			}
		}
	}()
}

// ping fails if the daemon does not take it.
func (c *Client) ping(patience time.Duration) error {
	c.write.Lock()
	defer c.write.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := c.conn.Write(message(header{programKeepAlive, keepAlivePing, typeMessage, 0, statusOK}, nil))
	return err
}

// ended is what calls fail with from the end of the connection on.
func (c *Client) ended(err error) error {
	if patience := c.silent.Load(); patience != nil {
		return fmt.Errorf("%w: it has not answered for %s", ErrClosed, *patience)
	}
	return err
}

// IsKeepAlive says that a message of this program is one by which the sender shows that it is there.
func IsKeepAlive(program uint32) bool { return program == programKeepAlive }
