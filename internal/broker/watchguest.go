// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"os"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

// watchGuest returns a descriptor of the Pod's QEMU.
func (s *Server) watchGuest(pod string, _ none) (task, error) {
	return s.ofLibvirtd(s.quick, pod, func(_ context.Context, libvirtd *os.File) (answer, error) {
		qemu, err := podprocess.WatchGuest(libvirtd)
		return answer{file: qemu}, err
	}), nil
}
