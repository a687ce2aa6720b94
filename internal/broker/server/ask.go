// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

const (
	// askTimeout bounds a request of one program to another, which calls the kubelet for it. Many at once wait for their turn, and may
	// not get it in time.
	askTimeout = 10 * time.Second
	// maxAsked limits the response, in bytes: the numbers of all CPUs of a node are shorter.
	maxAsked = 64 << 10
)

// Ask sends a request to a program, whose socket is below a directory, and decodes the result unless that is nil.
func Ask(ctx context.Context, program brokerapi.Program, dir string, request *brokerapi.Request, result any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := ask(ctx, program.Socket(dir), request)
	if err != nil {
		// Which is no error about a file of a Pod.
		return &brokerapi.Error{Code: brokerapi.CodeUnreachable, Message: fmt.Sprintf(
			"%s of this node does not respond: see the container of that name in the Pod of virt-broker: %v", program, err)}
	}
	if response.Error != nil {
		return response.Error
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(response.Result, result)
}

func ask(ctx context.Context, socket string, request *brokerapi.Request) (*brokerapi.Response, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := errors.Join(conn.SetDeadline(deadline), brokerapi.WriteRequest(conn, request)); err != nil {
		return nil, err
	}
	return brokerapi.ReadResponse(io.LimitReader(conn, maxAsked))
}
