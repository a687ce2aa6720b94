// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

// readResponse receives a response, and the descriptor that comes with it or nil. The caller closes the descriptor.
func readResponse(from *net.UnixConn) (response *brokerapi.Response, file *os.File, err error) {
	defer func() {
		if err != nil && file != nil {
			_ = file.Close()
			file = nil
		}
	}()
	header := make([]byte, brokerapi.HeaderBytes)
	read, file, err := receiveWith(from, header)
	if err != nil {
		return nil, file, err
	}
	response, err = brokerapi.ReadResponse(io.MultiReader(bytes.NewReader(header[:read]), from))
	return response, file, err
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
		// net has the kernel set close-on-exec. There is room for one descriptor, and the kernel closes others.
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
