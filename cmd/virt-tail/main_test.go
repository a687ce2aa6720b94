// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"testing"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestHoldIsTheArgumentOfAttachmentPods(t *testing.T) {
	if hold != launcherpod.HoldArgument {
		t.Errorf("%q, and attachment Pods have %q", hold, launcherpod.HoldArgument)
	}
}
