// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// openFile opens a file of an image, or of the persistent state, for reading.
func (s *Server) openFile(pod string, arguments json.RawMessage) (task, error) {
	var a brokerapi.OpenFileArguments
	if err := decode(arguments, &a); err != nil {
		return task{}, err
	}
	if strings.ContainsRune(a.Name, 0) || a.Name == "" {
		return task{}, brokerapi.Invalid("%.256q is no name of a file", a.Name)
	}
	if a.Mount != launcherpod.StateDir && a.Mount != launcherpod.KernelBootDir {
		if volume, err := below(a.Mount, launcherpod.ContainerDisksDir); err != nil || strings.Contains(volume, "/") {
			return task{}, brokerapi.Refused("%.256q has neither an image nor the persistent state of a guest", a.Mount)
		}
	}
	return task{limit: s.storage, run: func(context.Context) (answer, error) {
		root, err := s.pods.Root(pod)
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = root.Close() }()
		if a.Mount == launcherpod.StateDir {
			file, err := openStateFile(root, a.Name)
			return answer{file: file}, err
		}
		file, err := root.OpenRegular(a.Mount, a.Name)
		return answer{file: file}, err
	}}, nil
}
