// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vireo-project/vireo/internal/handler/network"
	"github.com/vireo-project/vireo/internal/handler/reconciler"
)

func TestMissingPodInterfaceIsTriedAgain(t *testing.T) {
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
