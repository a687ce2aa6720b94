// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"fmt"
	"time"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// mountsBefore is how long before a Pod's own directory the kubelet may create a directory of the node for the Pod, because it
// starts both at the same time. Source: kubernetes pkg/kubelet/kubelet.go (makePodDataDirs) and pkg/kubelet/volumemanager.
const mountsBefore = 10 * time.Second

// giveHostDir makes the user that QEMU runs as the owner of a directory of the node, if the kubelet created it for this Pod. It
// does nothing with an older directory.
func (b *Broker) giveHostDir(pod string, a brokerapi.GiveHostDirArguments) (server.Task, error) {
	if !isIn(layout.DisksDir, a.Directory) {
		return server.Task{}, brokerapi.Refused("%.256q is not where a directory of the node is mounted", a.Directory)
	}
	return b.inRoot(b.storage, pod, func(root *podprocess.Root) (server.Answer, error) {
		since, err := b.Pods.Created(pod)
		if err != nil || since.IsZero() {
			return server.Answer{}, err
		}
		if err := root.ChownNewDirectory(a.Directory, layout.QEMUUser, since.Add(-mountsBefore)); err != nil {
			return server.Answer{}, fmt.Errorf("check whether the kubelet created %s: %w", a.Directory, err)
		}
		return server.Answer{}, nil
	}), nil
}
