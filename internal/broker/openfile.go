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
	if a.Mount != layout.StateDir && a.Mount != layout.KernelBootDir {
		if volume, err := below(a.Mount, layout.ContainerDisksDir); err != nil || strings.Contains(volume, "/") {
			return task{}, brokerapi.Refused("%.256q has neither an image nor the persistent state of a guest", a.Mount)
		}
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

// below returns the rest of a path of the Pod that is below a directory. It accepts clean paths only.
func below(name, dir string) (string, error) {
	rest, found := strings.CutPrefix(name, dir+"/")
	if !found || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return "", brokerapi.Refused("%.256q is not below %s", name, dir)
	}
	return rest, nil
}
