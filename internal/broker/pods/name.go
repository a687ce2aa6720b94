// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Name returns the namespace and the name of a Pod. The kubelet's pod resources API has no UIDs, and the kubelet has the three
// together only in the name of the directory with the Pod's logs.
// Source: kubernetes pkg/kubelet/kuberuntime/helpers.go (BuildPodLogsDirectory).
func Name(logs, pod string) (namespace, name string, err error) {
	entries, err := os.ReadDir(logs)
	if err != nil {
		return "", "", fmt.Errorf("find the name of Pod %s: %w", pod, err)
	}
	for _, entry := range entries {
		// No name or namespace contains an underscore.
		if parts := strings.Split(entry.Name(), "_"); len(parts) == 3 && parts[2] == pod {
			return parts[0], parts[1], nil
		}
	}
	return "", "", fmt.Errorf("the kubelet has no directory for the logs of Pod %s in %s (see --pod-logs-dir): %w",
		pod, logs, fs.ErrNotExist)
}
