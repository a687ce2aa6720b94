// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerapi

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

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

// ErrUnreachable means that a program of virt-broker's Pod does not respond. It is an ordinary case: its Pod may be restarted at any time.
var ErrUnreachable = errors.New("a program of virt-broker's Pod on this node is not reachable: check the Pod, of the DaemonSet virt-broker")

// Error is why a request failed.
type Error struct {
	// Code is the kind of the error.
	Code Code `json:"code"`
	// Message is for people.
	Message string `json:"message"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Is reports whether the error has the meaning of another error, such as one of the standard library, so that errors.Is works across processes.
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
