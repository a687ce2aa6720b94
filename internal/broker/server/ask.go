// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

// askTimeout bounds a request of one program to another, or to itself.
const askTimeout = 5 * time.Second

// Ask sends a request to the program that serves a socket, and decodes the result unless that is nil.
func Ask(ctx context.Context, socket string, request *brokerapi.Request, result any) error {
	conn, err := (&net.Dialer{Timeout: askTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("%w: %s", brokerapi.ErrUnreachable, err.Error()) // which is no error about a file of a Pod
	}
	defer func() { _ = conn.Close() }()
	err = errors.Join(conn.SetDeadline(time.Now().Add(askTimeout)), brokerapi.WriteRequest(conn, request))
	if err != nil {
		return err
	}
	response, err := brokerapi.ReadResponse(conn)
	if err != nil {
		return err
	}
	if response.Error != nil {
		return response.Error
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(response.Result, result)
}
