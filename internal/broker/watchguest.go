// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"encoding/json"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

// watchGuest returns a descriptor of the Pod's QEMU.
func (s *Server) watchGuest(pod string, arguments json.RawMessage) (task, error) {
	return task{limit: s.quick, run: func(context.Context) (answer, error) {
		libvirtd, err := s.pods.Libvirtd(pod)
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = libvirtd.Close() }()
		qemu, err := podprocess.WatchGuest(libvirtd)
		return answer{file: qemu}, err
	}}, none(arguments)
}
