// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"sync/atomic"
	"testing"
)

func TestNoteStart(t *testing.T) {
	var stopped, runs atomic.Int64
	stopped.Store(1)
	if noteStart(&stopped, &runs); stopped.Load() != 1 {
		t.Errorf("it stopped at 1, and again at %d", stopped.Load())
	}
	runs.Store(2)
	if noteStart(&stopped, &runs); stopped.Load() <= 2 {
		t.Errorf("it ran at 2, and has stopped at %d", stopped.Load())
	}
	if noteStart(&runs, new(atomic.Int64)); runs.Load() != 2 {
		t.Errorf("it ran at 2, and again at %d", runs.Load())
	}
}
