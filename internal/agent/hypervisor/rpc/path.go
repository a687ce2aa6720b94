// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// beneath restricts the resolution of a path to the directory that it starts in, without symlinks, so that no entry that a Pod
// creates in its volumes can redirect the agent.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// socketsDir returns the path of a Pod's sockets volume below the kubelet's pods directory.
// Source: kubernetes pkg/kubelet/config/defaults.go and pkg/volume/emptydir.
func socketsDir(uid types.UID) (string, error) {
	if uid == "" || strings.ContainsAny(string(uid), "/\x00") || uid == "." || uid == ".." {
		return "", fmt.Errorf("%q is no Pod UID", uid)
	}
	return filepath.Join(string(uid), "volumes", "kubernetes.io~empty-dir", launcherpod.SocketsVolume), nil
}

// openBeneath opens a path below dir as a reference to the inode (O_PATH).
func openBeneath(dir *os.File, path string) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: beneath,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openDir opens a directory that the agent trusts, for example the kubelet's.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// throughFD returns a path to the inode of an open descriptor, even if it was renamed. The path fits into the 108 bytes of a
// socket address.
func throughFD(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// openSocket opens the inode of one of the sockets in a Pod's sockets volume.
func openSocket(podsDir string, uid types.UID, name string) (*os.File, error) {
	rel, err := socketsDir(uid)
	if err != nil {
		return nil, err
	}
	pods, err := openDir(podsDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pods.Close() }()
	socket, err := openBeneath(pods, filepath.Join(rel, name))
	if err != nil {
		return nil, err
	}
	info, err := socket.Stat()
	if err == nil && info.Mode().Type() != os.ModeSocket {
		err = fmt.Errorf("%s of Pod %s is no socket but %s", name, uid, info.Mode())
	}
	if err != nil {
		_ = socket.Close()
		return nil, err
	}
	return socket, nil
}
