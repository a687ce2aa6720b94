// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"

	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// openSocket connects to a socket of the Pod.
func (b *Broker) openSocket(pod string, a brokerapi.OpenSocketArguments) (server.Task, error) {
	t := server.Task{Limit: b.quick, Run: func(context.Context) (server.Answer, error) {
		conn, process, err := b.Pods.Connect(pod, a.Name)
		if err != nil {
			return server.Answer{}, err
		}
		_ = process.Close()
		defer func() { _ = conn.Close() }()
		file, err := conn.File()
		return server.Answer{File: file}, err
	}}
	if a.Wait {
		t.Wait = func(ctx context.Context) error { return b.Pods.Wait(ctx, pod, a.Name) }
	}
	return t, nil
}
