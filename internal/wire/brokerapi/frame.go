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
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// HeaderBytes is the size of the header of a message. A message is its length as four bytes, the most significant
// first, and as many bytes of JSON.
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

// ReadRequest receives a request. It calls admit with the length that a client announces before it reads that, and
// allocates memory for what was received only.
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

// WriteResponse sends a response, with a descriptor unless file is nil. It does not change whether the file blocks, as
// (*os.File).Fd would.
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
		err = raw.Control(func(fd uintptr) {
			sent, _,
				failed = to.WriteMsgUnix(data[:HeaderBytes], unix.UnixRights(int(fd)), nil)
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		data = data[sent:]
	}
	_, err = to.Write(data)
	return err
}

// Code is the kind of an Error.
type Code string

// The codes.
const (
	// CodeFailed: the node could not do what was requested.
	CodeFailed Code = "failed"
	// CodeInvalid: the request is not valid.
	CodeInvalid Code = "invalid"
	// CodeRefused: the broker does not do this: the Pod is no launcher, or the file is none that virt-handler needs.
	CodeRefused Code = "refused"
	// CodeNoLauncher: the Pod has no libvirtd, or does not exist on the node.
	CodeNoLauncher Code = "no-launcher"
	// CodeNotFound: a file of the Pod does not exist.
	CodeNotFound Code = "not-found"
	// CodeNoListener: no process listens on a socket that exists.
	CodeNoListener Code = "no-listener"
	// CodeBusy: too many requests are in flight.
	CodeBusy Code = "busy"
	// CodeTimeout: the node, for example the storage of a Pod, did not respond in time.
	CodeTimeout Code = "timeout"
	// CodeTooMuch: the files of a volume exceed the limits.
	CodeTooMuch Code = "too-much"
	// CodeUnreachable: another program of the broker's Pod, which the verb needs, does not respond.
	CodeUnreachable Code = "unreachable"
	// CodeNodesNetwork: the Pod is on the node's network.
	CodeNodesNetwork Code = "nodes-network"
)

// ErrUnreachable means that a program of virt-broker's Pod does not respond. It is an ordinary case: its Pod may be
// restarted at any time.
var ErrUnreachable = errors.New(
	"a program of virt-broker's Pod on this node is not reachable: check the Pod, of the DaemonSet virt-broker")

// Error is why a request failed.
type Error struct {
	// Code is the kind of the error.
	Code Code `json:"code"`
	// Message is for people.
	Message string `json:"message"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Is reports whether the error has the meaning of another error, such as one of the standard library, so that errors.Is
// works across processes.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case CodeNotFound:
		return target == fs.ErrNotExist
	case CodeNoListener:
		return target == unix.ECONNREFUSED
	case CodeUnreachable:
		return target == ErrUnreachable
	default:
		return false
	}
}

// Invalid returns an error with CodeInvalid.
func Invalid(format string, arguments ...any) error {
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf(format, arguments...)}
}

// Refused returns an error with CodeRefused.
func Refused(format string, arguments ...any) error {
	return &Error{Code: CodeRefused, Message: fmt.Sprintf(format, arguments...)}
}

// CodeOf returns the code of an error of the broker, or nothing.
func CodeOf(err error) Code {
	var broker *Error
	if errors.As(err, &broker) {
		return broker.Code
	}
	return ""
}

// maxMessage is the limit for the message of an error in bytes.
const maxMessage = 4096

// FromError returns the Error that describes any error.
func FromError(err error) *Error {
	out := &Error{Code: CodeFailed, Message: err.Error()}
	var broker *Error
	switch {
	case errors.As(err, &broker):
		out.Code = broker.Code
	case errors.Is(err, fs.ErrNotExist):
		out.Code = CodeNotFound
	case errors.Is(err, unix.ECONNREFUSED):
		out.Code = CodeNoListener
	}
	out.Message = out.Message[:min(len(out.Message), maxMessage)]
	return out
}
