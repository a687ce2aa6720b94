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

// HeaderBytes is the size of the header of a message. A message is its length as four bytes, the most significant first, and as many bytes of JSON.
const HeaderBytes = 4

// ErrLength means that a message has a length that is not allowed.
var ErrLength = errors.New("a message of a length that is not allowed")

func frame(message any, limit int) ([]byte, error) {
	text, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	if len(text) > limit {
		return nil, fmt.Errorf("%w: %d bytes", ErrLength, len(text))
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, HeaderBytes+len(text)), uint32(len(text))), text...), nil
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

// ReadRequest receives a request. It calls admit with the length that a client announces before it reads that, and allocates memory for
// what was received only.
func ReadRequest(from io.Reader, admit func(length uint32) error) (*Request, error) {
	text, err := readFrame(from, MaxRequest, admit)
	if err != nil {
		return nil, err
	}
	request := &Request{}
	return request, Decode(text, request)
}

// ReadResponse receives a response. A descriptor that comes with it is received by who reads the header.
func ReadResponse(from io.Reader) (*Response, error) {
	text, err := readFrame(from, MaxResponse, func(uint32) error { return nil })
	if err != nil {
		return nil, err
	}
	response := &Response{}
	return response, json.Unmarshal(text, response)
}

func readFrame(from io.Reader, limit uint32, admit func(length uint32) error) ([]byte, error) {
	header := make([]byte, HeaderBytes)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header)
	if length == 0 || length > limit {
		return nil, fmt.Errorf("%w: %d bytes", ErrLength, length)
	}
	if err := admit(length); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(from, int64(length)))
	if err == nil && len(text) < int(length) {
		err = io.ErrUnexpectedEOF
	}
	return text, err
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

// WriteResponse sends a response, with a descriptor unless file is nil. It does not change whether the file blocks, as (*os.File).Fd would.
func WriteResponse(to *net.UnixConn, r *Response, file *os.File) error {
	data, err := frame(r, MaxResponse)
	if err != nil {
		return err
	}
	if file != nil {
		raw, err := file.SyscallConn()
		if err != nil {
			return err
		}
		// The descriptor comes with the header.
		var sent int
		var failed error
		err = raw.Control(func(fd uintptr) { sent, _, failed = to.WriteMsgUnix(data[:HeaderBytes], unix.UnixRights(int(fd)), nil) })
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		data = data[sent:]
	}
	_, err = to.Write(data)
	return err
}
