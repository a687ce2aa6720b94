// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package nbd is a client of the NBD protocol: it reads from an export, and reads which of its blocks have data or have
// changed. The server is a launcher's QEMU, which a guest may have taken over. So everything that it sends is limited
// and checked: a reply that is not complete and consistent ends the session.
//
// Source of the protocol: https://github.com/NetworkBlockDevice/nbd, doc/proto.md.
package nbd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/vireo-project/vireo/internal/component/printable"
)

// Options configure a session.
type Options struct {
	// Export is the name of the export.
	Export string
	// Contexts are the metadata contexts whose status can be read. The server must have all of them.
	Contexts []string
	// Timeout limits the handshake, and each request. Zero means that there is no limit.
	Timeout time.Duration
}

// Client is one session. It has one request at a time, and is not safe for concurrent use. After any error except a
// *ServerError, it cannot be used any more.
type Client struct {
	conn    net.Conn
	in      *bufio.Reader
	timeout time.Duration
	// structured reports whether replies are structured ones.
	structured bool
	size       uint64
	// blockSize is what offsets and lengths of requests must be multiples of, and maxRequest how much one request may
	// read.
	blockSize, maxRequest uint32
	// contexts are the names of the contexts by the ID that the server has given them.
	contexts map[uint32]string
	cookie   uint64
}

// ServerError is an error that the server reports for a request. The session can be used further.
type ServerError struct {
	// Code is NBD's code, which is mostly that of Linux.
	Code uint32
	// Text is the server's explanation, or nothing.
	Text string
}

// Error implements error.
func (e *ServerError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("the NBD server reports error %d", e.Code)
	}
	return fmt.Sprintf("the NBD server reports error %d: %s", e.Code, e.Text)
}

// ErrNoExport is the error of a session with an export or a context that the server does not have.
var ErrNoExport = errors.New("the NBD server does not have it")

// Open begins a session. The client speaks first. The caller closes the connection, also after an error.
func Open(conn net.Conn, o Options) (*Client, error) {
	c := &Client{conn: conn, in: bufio.NewReader(conn), timeout: o.Timeout, blockSize: 1, maxRequest: maxRead,
		contexts: map[uint32]string{}}
	if len(o.Export) > maxName {
		return nil, fmt.Errorf("the name of the NBD export has more than %d bytes", maxName)
	}
	c.limit()
	defer c.unlimit()
	if err := c.greet(); err != nil {
		return nil, fmt.Errorf("NBD handshake: %w", err)
	}
	if err := c.negotiateReplies(); err != nil {
		return nil, fmt.Errorf("negotiate structured replies by NBD: %w", err)
	}
	if len(o.Contexts) > 0 {
		if err := c.selectContexts(o); err != nil {
			return nil, fmt.Errorf("select the metadata contexts of the NBD export %q: %w", o.Export, err)
		}
	}
	if err := c.enter(o.Export); err != nil {
		return nil, fmt.Errorf("open the NBD export %q: %w", o.Export, err)
	}
	return c, nil
}

// Size returns the size of the export.
func (c *Client) Size() uint64 { return c.size }

// BlockSize returns what the offsets and the lengths of requests must be multiples of.
func (c *Client) BlockSize() uint32 { return c.blockSize }

// MaxRead returns how much one request may read.
func (c *Client) MaxRead() uint32 { return c.maxRequest }

// Close ends the session: it closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// limit sets the deadline of what follows.
func (c *Client) limit() {
	if c.timeout > 0 {
		_ = c.conn.SetDeadline(time.Now().Add(c.timeout))
	}
}

func (c *Client) unlimit() { _ = c.conn.SetDeadline(time.Time{}) }

// greet exchanges the greetings. The client does not wait for the server's: the agent that forwards the connection
// connects to the server only when it is used, because QEMU disconnects clients that do not finish the handshake within
// seconds.
func (c *Client) greet() error {
	const flags = flagFixedNewstyle | flagNoZeroes
	if err := c.write(binary.BigEndian.AppendUint32(nil, flags)); err != nil {
		return err
	}
	raw := make([]byte, 18)
	if _, err := io.ReadFull(c.in, raw); err != nil {
		return err
	}
	if binary.BigEndian.Uint64(raw) != magicServer || binary.BigEndian.Uint64(raw[8:]) != magicOption {
		return errors.New("the peer is no NBD server")
	}
	if binary.BigEndian.Uint16(raw[16:])&flags != flags {
		return errors.New("the server does not have the fixed newstyle negotiation: it is too old")
	}
	return nil
}

// optionReply is a reply to an option.
type optionReply struct {
	kind uint32
	data []byte
}

// option sends an option and calls read for each reply until the one that acknowledges it.
func (c *Client) option(option uint32, data []byte, read func(optionReply) error) error {
	request := binary.BigEndian.AppendUint64(nil, magicOption)
	request = binary.BigEndian.AppendUint32(request, option)
	request = binary.BigEndian.AppendUint32(request, uint32(len(data)))
	if err := c.write(append(request, data...)); err != nil {
		return err
	}
	for range maxOptionReplies {
		reply, err := c.optionReply(option)
		switch {
		case err != nil:
			return err
		case reply.kind == repAck:
			return nil
		case reply.kind == repErrUnknown:
			return ErrNoExport
		case reply.kind&repError != 0:
			return &ServerError{Code: reply.kind &^ repError, Text: printable.Text(string(reply.data), maxError)}
		}
		if err := read(reply); err != nil {
			return err
		}
	}
	return fmt.Errorf("the server has sent more than %d replies to an option", maxOptionReplies)
}

func (c *Client) optionReply(option uint32) (optionReply, error) {
	raw := make([]byte, 20)
	if _, err := io.ReadFull(c.in, raw); err != nil {
		return optionReply{}, err
	}
	length := binary.BigEndian.Uint32(raw[16:])
	switch {
	case binary.BigEndian.Uint64(raw) != magicReply:
		return optionReply{}, errors.New("a reply to an option has the wrong magic number")
	case binary.BigEndian.Uint32(raw[8:]) != option:
		return optionReply{}, errors.New("the server has replied to an option that was not sent")
	case length > maxOptionReply:
		return optionReply{}, fmt.Errorf("a reply to an option has %d bytes: at most %d are accepted", length, maxOptionReply)
	}
	reply := optionReply{kind: binary.BigEndian.Uint32(raw[12:]), data: make([]byte, length)}
	_, err := io.ReadFull(c.in, reply.data)
	return reply, err
}

// ignore is for replies that are not needed.
func ignore(optionReply) error { return nil }

// negotiateReplies requests structured replies. A server without them can be read, but has no status of blocks.
func (c *Client) negotiateReplies() error {
	err := c.option(optStructuredReply, nil, ignore)
	var refused *ServerError
	if errors.As(err, &refused) {
		return nil
	}
	c.structured = err == nil
	return err
}

// selectContexts selects the metadata contexts.
func (c *Client) selectContexts(o Options) error {
	data := appendText(nil, o.Export)
	data = binary.BigEndian.AppendUint32(data, uint32(len(o.Contexts)))
	wanted := map[string]bool{}
	for _, name := range o.Contexts {
		if len(name) > maxName {
			return fmt.Errorf("the name of a context has more than %d bytes", maxName)
		}
		data = appendText(data, name)
		wanted[name] = true
	}
	err := c.option(optSetMetaContext, data, func(reply optionReply) error {
		if reply.kind != repMetaContext || len(reply.data) < 4 {
			return errors.New("the server has not replied with a context")
		}
		id, name := binary.BigEndian.Uint32(reply.data), string(reply.data[4:])
		if _, known := c.contexts[id]; known || !wanted[name] {
			return errors.New("the server has replied with a context that was not requested, or twice with one")
		}
		wanted[name] = false
		c.contexts[id] = name
		return nil
	})
	if err == nil && len(c.contexts) != len(wanted) {
		err = ErrNoExport
	}
	return err
}

// enter ends the negotiation: what follows are requests.
func (c *Client) enter(export string) error {
	data := appendText(nil, export)
	data = binary.BigEndian.AppendUint16(data, 1)
	data = binary.BigEndian.AppendUint16(data, infoBlockSize)
	hasSize := false
	err := c.option(optGo, data, func(reply optionReply) error {
		if reply.kind != repInfo || len(reply.data) < 2 {
			return errors.New("the server has not replied with information about the export")
		}
		switch info := reply.data[2:]; binary.BigEndian.Uint16(reply.data) {
		case infoExport:
			if len(info) != 10 || binary.BigEndian.Uint64(info) > maxDisk ||
				binary.BigEndian.Uint16(info[8:])&transmissionHasFlags == 0 {
				return errors.New("the information about the export is not valid")
			}
			c.size, hasSize = binary.BigEndian.Uint64(info), true
		case infoBlockSize:
			return c.setBlockSize(info)
		}
		return nil
	})
	if err == nil && !hasSize {
		err = errors.New("the server has not sent the size of the export")
	}
	return err
}

// setBlockSize adopts the server's block sizes: the minimum, the preferred one, and the maximum of a request.
func (c *Client) setBlockSize(info []byte) error {
	if len(info) != 12 {
		return errors.New("the block sizes of the export are not valid")
	}
	least, most := binary.BigEndian.Uint32(info), binary.BigEndian.Uint32(info[8:])
	if least == 0 || least > maxLeastBlock || least&(least-1) != 0 || most < least {
		return fmt.Errorf("the block sizes of the export are not valid: at least %d, at most %d", least, most)
	}
	c.blockSize = least
	c.maxRequest = min(maxRead, most-most%least)
	return nil
}

func appendText(data []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(data, uint32(len(text))), text...)
}

func (c *Client) write(raw []byte) error {
	_, err := c.conn.Write(raw)
	return err
}

// Magic numbers.
const (
	magicServer     = 0x4e42444d41474943
	magicOption     = 0x49484156454f5054
	magicReply      = 0x0003e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
)

// Flags of the handshake. The server's and the client's have the same values.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// Options, and their replies. Replies with the highest bit are errors.
const (
	optGo              = 7
	optStructuredReply = 8
	optSetMetaContext  = 10

	repAck         = 1
	repInfo        = 3
	repMetaContext = 4
	repError       = 1 << 31
	repErrUnknown  = repError + 6

	infoExport    = 0
	infoBlockSize = 3
)

// transmissionHasFlags is set in the flags of each export.
const transmissionHasFlags = 1 << 0

// Commands, and types of the chunks of a structured reply.
const (
	cmdRead        = 0
	cmdBlockStatus = 7

	chunkDone        = 1 << 0 // a flag
	chunkNone        = 0
	chunkData        = 1
	chunkHole        = 2
	chunkBlockStatus = 5
	chunkError       = 1 << 15 // the types of errors have this bit
)

const (
	// maxRead is the greatest request to read, unless the server accepts less. maxStatus is the greatest request for
	// the status of blocks, whose length has 32 bits: a multiple of all block sizes.
	maxRead   = 1 << 20
	maxStatus = 1 << 31
	// maxLeastBlock is the greatest minimum block size that is accepted. The protocol's.
	maxLeastBlock = 1 << 16
	// maxOptionReply is how long a reply to an option may be, and maxOptionReplies how many replies an option may have.
	maxOptionReply   = 8 << 10
	maxOptionReplies = 16
	// maxExtents is how many extents a reply may have for a context, and maxChunks how many chunks a reply may have.
	maxExtents = 128 << 10
	maxChunks  = 16 << 10
	// maxError is how long an error of the server may be. The protocol's limit for all texts.
	maxError = 4 << 10
	// maxName is how long a name may be. The protocol's.
	maxName = 4 << 10
	// maxDisk is the greatest size of an export: 1 PiB.
	maxDisk = 1 << 50
)
