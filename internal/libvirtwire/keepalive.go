// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"fmt"
	"time"
)

// programKeepAlive is the protocol of pings (src/rpc/virkeepaliveprotocol.x in libvirt). libvirtd responds in its event loop,
// even while its workers block.
const (
	programKeepAlive = 0x6b656570
	keepAlivePing    = 1
)

// KeepAlive sends a ping in each interval, and closes the connection if the daemon has sent nothing for the timeout.
// Calls that may take hours then fail with ErrClosed. It is called once, and stops with the connection.
func (c *Client) KeepAlive(interval, timeout time.Duration) {
	c.lastMessage.Store(time.Now().UnixNano())
	go func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-c.done:
				return
			case <-tick.C:
			}
			if time.Since(time.Unix(0, c.lastMessage.Load())) >= timeout || c.ping(timeout) != nil {
				c.timedOut.CompareAndSwap(nil, &timeout)
				c.Close()
				return
			}
		}
	}()
}

// ping sends a ping. It fails if the daemon does not read it.
func (c *Client) ping(timeout time.Duration) error {
	c.write.Lock()
	defer c.write.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(message(header{programKeepAlive, keepAlivePing, typeMessage, 0, statusOK}, nil))
	return err
}

// ended returns the error of calls after the end of the connection.
func (c *Client) ended(err error) error {
	if timeout := c.timedOut.Load(); timeout != nil {
		return fmt.Errorf("%w: it has not responded for %s", ErrClosed, *timeout)
	}
	return err
}

// IsKeepAlive reports whether a program is that of pings.
func IsKeepAlive(program uint32) bool { return program == programKeepAlive }
