// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// inspect describes a file of the Pod.
func (b *Broker) inspect(pod string, a brokerapi.InspectArguments) (server.Task, error) {
	if !path.IsAbs(a.Path) || len(a.Path) >= unix.PathMax || strings.ContainsRune(a.Path, 0) {
		return server.Task{}, brokerapi.Invalid("%.256q is no path", a.Path)
	}
	return b.inRoot(b.storage, pod, func(root *podprocess.Root) (server.Answer, error) {
		f, err := root.Open(a.Path, unix.O_PATH)
		if err != nil {
			return server.Answer{}, err
		}
		defer func() { _ = f.Close() }()
		result, err := describe(f, a.DirectIO)
		return server.Answer{Result: result}, err
	}), nil
}

// describe describes a file without opening it, unless it is a regular one and withDirectIO is set: opening a device can have side
// effects.
func describe(f *os.File, withDirectIO bool) (brokerapi.InspectResult, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return brokerapi.InspectResult{}, err
	}
	result := brokerapi.InspectResult{Mode: stat.Mode}
	if kind := stat.Mode & unix.S_IFMT; kind == unix.S_IFBLK {
		result.Major, result.Minor = unix.Major(stat.Rdev), unix.Minor(stat.Rdev)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err == nil && fs.Bsize > 0 {
		result.BlockSize = uint(fs.Bsize)
	}
	if withDirectIO && stat.Mode&unix.S_IFMT == unix.S_IFREG && podprocess.ExpectNoKernelFile(f) == nil {
		fd, err := unix.Open(podprocess.Reopen(f), unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		result.DirectIO = err == nil && unix.Close(fd) == nil
	}
	return result, nil
}
