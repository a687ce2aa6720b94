// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"testing"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestHoldIsTheArgumentOfAttachmentPods(t *testing.T) {
	if waitArgument != launcherpod.HoldArgument {
		t.Errorf("%q, and attachment Pods have %q", waitArgument, launcherpod.HoldArgument)
	}
}
