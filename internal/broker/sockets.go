// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

// openSocket connects to a socket of the Pod.
func (s *Server) openSocket(pod string, a brokerapi.OpenSocketArguments) (task, error) {
	t := task{limit: s.quick, run: func(context.Context) (answer, error) {
		conn, process, err := s.pods.Connect(pod, a.Name)
		if err != nil {
			return answer{}, err
		}
		_ = process.Close()
		defer func() { _ = conn.Close() }()
		file, err := conn.File()
		return answer{file: file}, err
	}}
	if a.Wait {
		t.wait = func(ctx context.Context) error { return s.pods.Wait(ctx, pod, a.Name) }
	}
	return t, nil
}
