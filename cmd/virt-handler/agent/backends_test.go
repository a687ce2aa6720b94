// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/agent/reconciler"
)

func TestHostNetworkPodIsRejected(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}
	_, err := namespaceOf(nil, pod)
	var terminal *reconciler.Terminal
	if !errors.As(err, &terminal) || !errors.Is(err, network.ErrNodesNamespace) {
		t.Errorf("got %#v", err)
	}
}

func TestMissingPodInterfaceIsRetried(t *testing.T) {
	missing := fmt.Errorf("connect the interface blue: %w", &network.MissingInterfaceError{PodInterface: "pod16477688c0e"})
	var retry *reconciler.Retry
	if err := fromNetwork(missing); !errors.As(err, &retry) || retry.Reason != "MissingPodInterface" || retry.After <= 0 {
		t.Errorf("got %#v", err)
	}
	other := errors.New("netlink is out of memory")
	if err := fromNetwork(other); err != other { //nolint:errorlint // the same error, not one that wraps it
		t.Errorf("got %v", err)
	}
}
