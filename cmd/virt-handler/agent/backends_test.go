// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/network"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func TestHostNetworkPodIsRejected(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}
	_, err := plan(&v1.VirtualMachineInstance{}, pod)
	refused := fromNetwork(&brokerapi.Error{Code: brokerapi.CodeNodesNetwork})
	for _, err := range []error{err, refused} {
		var terminal *outcome.Terminal
		if !errors.As(err, &terminal) || terminal.Reason != agentvmi.ReasonInvalidNetwork {
			t.Errorf("got %#v", err)
		}
	}
}

func TestMissingPodInterfaceIsRetried(t *testing.T) {
	missing := fmt.Errorf("connect the interface blue: %w", &network.MissingInterfaceError{Name: "pod16477688c0e"})
	var retry *outcome.Retry
	if err := fromNetwork(missing); !errors.As(err, &retry) || retry.Reason != "MissingPodInterface" || retry.After <= 0 {
		t.Errorf("got %#v", err)
	}
	other := errors.New("netlink is out of memory")
	if err := fromNetwork(other); err != other { //nolint:errorlint // the same error, not one that wraps it
		t.Errorf("got %v", err)
	}
}
