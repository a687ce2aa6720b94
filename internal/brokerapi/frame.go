// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerapi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A message is its length as four bytes, the most significant first, and as many bytes of JSON.
const headerBytes = 4

// errLength means that a message has a length that is not allowed.
var errLength = errors.New("a message of a length that is not allowed")

func frame(message any, limit int) ([]byte, error) {
	text, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	if len(text) > limit {
		return nil, fmt.Errorf("%w: %d bytes", errLength, len(text))
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, headerBytes+len(text)), uint32(len(text))), text...), nil
}

// WriteRequest sends a request.
func WriteRequest(to io.Writer, r *Request) error {
	data, err := frame(r, MaxRequest)
	if err != nil {
		return err
	}
	_, err = to.Write(data)
	return err
}

// ReadRequest receives a request. It allocates memory for what was received only, not for the length that a client announces.
func ReadRequest(from io.Reader) (*Request, error) {
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header)
	if length == 0 || length > MaxRequest {
		return nil, fmt.Errorf("%w: %d bytes", errLength, length)
	}
	text, err := io.ReadAll(io.LimitReader(from, int64(length)))
	if err != nil {
		return nil, err
	}
	if len(text) < int(length) {
		return nil, io.ErrUnexpectedEOF
	}
	request := &Request{}
	return request, Decode(text, request)
}

// Decode decodes a message or its arguments. It returns an error if there is anything that this version does not know.
func Decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return Invalid("the request cannot be read: %.256s", err.Error())
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Invalid("the request has more than one value")
	}
	return nil
}

// WriteResponse sends a response, with a descriptor unless file is nil.
func WriteResponse(to *net.UnixConn, r *Response, file *os.File) error {
	data, err := frame(r, MaxResponse)
	if err != nil {
		return err
	}
	if file != nil {
		// The descriptor comes with the header.
		sent, err := sendWith(to, data[:headerBytes], file)
		if err != nil {
			return err
		}
		data = data[sent:]
	}
	_, err = to.Write(data)
	return err
}

// sendWith sends bytes with a descriptor. It does not change whether the file blocks, as (*os.File).Fd would.
func sendWith(to *net.UnixConn, data []byte, file *os.File) (int, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var sent int
	var failed error
	err = raw.Control(func(fd uintptr) { sent, _, failed = to.WriteMsgUnix(data, unix.UnixRights(int(fd)), nil) })
	return sent, errors.Join(err, failed)
}

// ReadResponse receives a response, and the descriptor that comes with it or nil. The caller closes the descriptor.
func ReadResponse(from *net.UnixConn) (response *Response, file *os.File, err error) {
	defer func() {
		if err != nil && file != nil {
			_ = file.Close()
			file = nil
		}
	}()
	header := make([]byte, headerBytes)
	read, file, err := receiveWith(from, header)
	if err != nil {
		return nil, file, err
	}
	if _, err := io.ReadFull(from, header[read:]); err != nil {
		return nil, file, err
	}
	length := binary.BigEndian.Uint32(header)
	if length == 0 || length > MaxResponse {
		return nil, file, fmt.Errorf("%w: %d bytes", errLength, length)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(from, text); err != nil {
		return nil, file, err
	}
	response = &Response{}
	return response, file, json.Unmarshal(text, response)
}

// receiveWith receives some bytes, and the descriptor that comes with them or nil.
func receiveWith(from *net.UnixConn, into []byte) (int, *os.File, error) {
	const oneDescriptor = 4
	control := make([]byte, unix.CmsgSpace(oneDescriptor))
	n, controls, _, _, err := from.ReadMsgUnix(into, control)
	switch {
	case err != nil:
		return 0, nil, err
	case n == 0:
		return 0, nil, io.ErrUnexpectedEOF
	case controls == 0:
		return n, nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:controls])
	if err != nil {
		return 0, nil, fmt.Errorf("receive a descriptor: %w", err)
	}
	var file *os.File
	for i := range messages {
		// net asks the kernel to set close-on-exec. There is room for one descriptor, and the kernel closes others.
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if file != nil {
				_ = unix.Close(fd)
				continue
			}
			file = os.NewFile(uintptr(fd), "from virt-broker")
		}
	}
	return n, file, nil
}
