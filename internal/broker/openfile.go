// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// openFile opens a file of an image, or of the persistent state, for reading.
func (s *Server) openFile(pod string, a brokerapi.OpenFileArguments) (task, error) {
	if strings.ContainsRune(a.Name, 0) || a.Name == "" {
		return task{}, brokerapi.Invalid("%.256q is no name of a file", a.Name)
	}
	if a.Mount != layout.StateDir && a.Mount != layout.KernelBootDir && !isIn(layout.ContainerDisksDir, a.Mount) {
		return task{}, brokerapi.Refused("%.256q has neither an image nor the persistent state of a guest", a.Mount)
	}
	return s.inRoot(s.storage, pod, func(root *podprocess.Root) (answer, error) {
		if a.Mount == layout.StateDir {
			file, err := root.OpenWithin(a.Mount, a.Name, unix.S_IFREG)
			return answer{file: file}, err
		}
		file, err := root.OpenRegular(a.Mount, a.Name)
		return answer{file: file}, err
	}), nil
}

// isIn reports whether a path of the Pod is that of an entry of a directory. It accepts clean paths only.
func isIn(dir, name string) bool {
	return path.Dir(name) == dir && path.Clean(name) == name && !strings.ContainsRune(name, 0)
}
