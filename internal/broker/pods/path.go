// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// uid matches the UID of a Pod, which names its directory. The API server generates UUIDs.
var uid = regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z-]{0,62})$`)

// CheckUID returns an error if a text cannot be the UID of a Pod.
func CheckUID(text string) error {
	if !uid.MatchString(text) {
		return brokerapi.Invalid("%.64q is no Pod UID", text)
	}
	return nil
}

// socketsDir is the path of a Pod's sockets volume below the kubelet's directory of the Pod.
// Source: kubernetes pkg/kubelet/config/defaults.go and pkg/volume/emptydir.
const socketsDir = EmptyDirs + layout.SocketsVolume

// checkSocketName returns an error unless a name is that of a socket to which virt-handler connects.
func checkSocketName(name string) error {
	if name == layout.LibvirtSocketName || layout.IsBackupSocketName(name) {
		return nil
	}
	for port := range layout.USBPorts {
		if name == layout.USBSocketName(port) {
			return nil
		}
	}
	return brokerapi.Refused("%.64q is no socket of a launcher Pod", name)
}

// openDir opens a directory that the broker trusts, for example the kubelet's.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(filepath.Clean(path), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// open opens a file in the kubelet's directory of a Pod.
func (p *Pods) open(pod, name string, flags int) (*os.File, error) {
	if err := CheckUID(pod); err != nil {
		return nil, err
	}
	pods, err := openDir(p.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pods.Close() }()
	return podprocess.OpenAt(pods, filepath.Join(pod, name), unix.O_NOFOLLOW|flags, podprocess.Beneath)
}

// openSocket opens the inode of one of the sockets in a Pod's sockets volume.
func (p *Pods) openSocket(pod, name string) (*os.File, error) {
	if err := checkSocketName(name); err != nil {
		return nil, err
	}
	socket, err := p.open(pod, filepath.Join(socketsDir, name), unix.O_PATH)
	if err != nil {
		return nil, err
	}
	info, err := socket.Stat()
	if err == nil && info.Mode().Type() != os.ModeSocket {
		err = brokerapi.Refused("%s of Pod %s is no socket but %s", name, pod, info.Mode())
	}
	if err != nil {
		_ = socket.Close()
		return nil, err
	}
	return socket, nil
}
