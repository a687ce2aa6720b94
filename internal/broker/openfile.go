// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// openFile opens a file of an image, an overlay, or a file of the persistent state, for reading.
func (b *Broker) openFile(pod string, a brokerapi.OpenFileArguments) (server.Task, error) {
	if strings.ContainsRune(a.Name, 0) || a.Name == "" {
		return server.Task{}, brokerapi.Invalid("%.256q is no name of a file", a.Name)
	}
	// In a directory that the Pod can write to, symlinks may lead anywhere.
	written := a.Mount == layout.StateDir || a.Mount == layout.TrackedDisksDir
	if !written && a.Mount != layout.KernelBootDir && !isIn(layout.ContainerDisksDir, a.Mount) {
		return server.Task{}, brokerapi.Refused("%.256q has neither an image, nor overlays, nor the persistent state of a guest", a.Mount)
	}
	return b.inRoot(b.storage, pod, func(root *podprocess.Root) (server.Answer, error) {
		if written {
			file, err := root.OpenWithin(a.Mount, a.Name, unix.S_IFREG)
			return server.Answer{File: file}, err
		}
		file, err := root.OpenRegular(a.Mount, a.Name)
		return server.Answer{File: file}, err
	}), nil
}

// isIn reports whether a path of the Pod is that of an entry of a directory. It accepts clean paths only.
func isIn(dir, name string) bool {
	return path.Dir(name) == dir && path.Clean(name) == name && !strings.ContainsRune(name, 0)
}
