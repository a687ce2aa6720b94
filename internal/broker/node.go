// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"

	"github.com/vireo-project/vireo/internal/broker/podresources"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// watchDevices reports the state of the node's devices.
func (s *Server) watchDevices(string, none) (task, error) {
	return task{limit: s.waits, watch: func() (answer, <-chan struct{}) {
		changed := s.Devices.Changed()
		usable, kvm, known := s.Devices.Usable()
		return answer{result: brokerapi.DevicesResult{Known: known, Usable: usable, KVM: kvm}}, changed
	}}, nil
}

// cpuPolicy reads from the kubelet whether it assigns exclusive CPUs.
func (s *Server) cpuPolicy(string, none) (task, error) {
	return task{limit: s.quick, run: func(ctx context.Context) (answer, error) {
		static, err := podresources.Client{Dir: s.PodResourcesDir}.HasStaticCPUPolicy(ctx)
		return answer{result: brokerapi.CPUPolicyResult{Static: static}}, err
	}}, nil
}
