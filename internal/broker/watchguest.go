// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"os"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/server"
)

// watchGuest returns a descriptor of the Pod's QEMU.
func (b *Broker) watchGuest(pod string, _ server.None) (server.Task, error) {
	return b.ofLibvirtd(b.quick, pod, func(_ context.Context, libvirtd *os.File) (server.Answer, error) {
		qemu, err := podprocess.WatchGuest(libvirtd)
		return server.Answer{File: qemu}, err
	}), nil
}
