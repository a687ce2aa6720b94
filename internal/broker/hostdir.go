// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"fmt"
	"time"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// mountsBefore is how long before a Pod's own directory the kubelet may create a directory of the node for the Pod, because it
// starts both at the same time. Source: kubernetes pkg/kubelet/kubelet.go (makePodDataDirs) and pkg/kubelet/volumemanager.
const mountsBefore = 10 * time.Second

// giveHostDir makes the user that QEMU runs as the owner of a directory of the node, if the kubelet created it for this Pod. It
// does nothing with an older directory.
func (s *Server) giveHostDir(pod string, a brokerapi.GiveHostDirArguments) (task, error) {
	if !isIn(layout.DisksDir, a.Directory) {
		return task{}, brokerapi.Refused("%.256q is not where a directory of the node is mounted", a.Directory)
	}
	return s.inRoot(s.storage, pod, func(root *podprocess.Root) (answer, error) {
		since, err := s.pods.Created(pod)
		if err != nil || since.IsZero() {
			return answer{}, err
		}
		if err := root.ChownNewDirectory(a.Directory, layout.QEMUUser, since.Add(-mountsBefore)); err != nil {
			return answer{}, fmt.Errorf("check whether the kubelet created %s: %w", a.Directory, err)
		}
		return answer{}, nil
	}), nil
}
