// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// rtRuntime is the part of each period in which realtime threads may run; -1 means all of it.
// Source: Linux Documentation/scheduler/sched-rt-group.rst.
const rtRuntime = "/proc/sys/kernel/sched_rt_runtime_us"

// RealtimeCapable reports whether the node's kernel does not limit the run time of realtime threads, KubeVirt's condition for
// realtime guests. It returns false for a kernel without the setting.
func RealtimeCapable() (bool, error) { return realtimeCapable(rtRuntime) }

func realtimeCapable(path string) (bool, error) {
	text, err := os.ReadFile(path) //nolint:gosec // a constant but for the test
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the limit for realtime threads: %w", err)
	}
	return strings.TrimSpace(string(text)) == "-1", nil
}
