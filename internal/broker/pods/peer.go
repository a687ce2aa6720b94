// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const (
	// terminationLog is where the kubelet mounts a file of its own in each container.
	// Source: kubernetes pkg/apis/core/v1/defaults.go (TerminationMessagePathDefault).
	terminationLog = "/dev/termination-log"
	// maxStarts is the limit for the files of a container: the kubelet creates one for each start, and a launcher is
	// started once.
	maxStarts = 64
)

// checkPeer verifies that the process that listens behind conn runs as QEMU's user in the container compute of the Pod,
// and returns its directory in /proc. For a connected socket the kernel reports the process that called listen.
func (p *Pods) checkPeer(conn *net.UnixConn, pod string) (*os.File, error) {
	cred, err := PeerCredentials(conn)
	if err != nil {
		return nil, err
	}
	if cred.Uid != layout.QEMUUser {
		return nil, brokerapi.Refused("the socket of Pod %s is served by user %d, not %d", pod, cred.Uid, layout.QEMUUser)
	}
	// From here on the process is identified by this descriptor, because its PID could be reused.
	dir, err := openDir(fmt.Sprintf("/proc/%d", cred.Pid))
	if err != nil {
		return nil, fmt.Errorf("find the process behind the socket of Pod %s (the Pod of virt-broker needs hostPID): %w", pod,
			err)
	}
	if err := errors.Join(checkCgroup(dir, pod), p.checkContainer(dir, pod)); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// PeerCredentials returns the credentials of the process behind a connection, according to the kernel.
func PeerCredentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}

func checkCgroup(process *os.File, pod string) error {
	cgroups, err := podprocess.Cgroups(process)
	if err != nil {
		return fmt.Errorf("read the cgroup of the process behind the socket of Pod %s: %w", pod, err)
	}
	for _, cgroup := range cgroups {
		if slices.ContainsFunc(cgroup.Elements, func(element string) bool { return IsCgroup(element, pod) }) {
			return nil
		}
	}
	return brokerapi.Refused("the process behind the socket of Pod %s does not belong to the Pod", pod)
}

// IsCgroup reports whether an element of a cgroup's path is that of a Pod, which the kubelet calls pod<UID> with
// cgroupfs and …-pod<UID with underscores>.slice with systemd. Source: kubernetes
// pkg/kubelet/cm/{pod_container_manager_linux,cgroup_manager_linux}.go.
func IsCgroup(element, pod string) bool {
	systemd := "-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice"
	return element == "pod"+pod || strings.HasPrefix(element, "kubepods") && strings.HasSuffix(element, systemd)
}

// IsAnyCgroup reports whether an element of a cgroup's path can be that of a Pod.
func IsAnyCgroup(element string) bool {
	return strings.HasPrefix(element, "pod") || strings.HasPrefix(element, "kubepods") && strings.Contains(element, "-pod")
}

// checkContainer verifies that a process is in the container compute of a Pod: its termination log is a file that the
// kubelet created for that container. The inodes are compared, because a process may choose the names that it has for
// them. Source: kubernetes pkg/kubelet/kuberuntime/kuberuntime_container.go (makeMounts) and
// pkg/kubelet/kubelet_getters.go.
func (p *Pods) checkContainer(process *os.File, pod string) error {
	root, err := podprocess.OpenRoot(process)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	log, err := root.Open(terminationLog, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("find the container of the process behind the socket of Pod %s: %w", pod, err)
	}
	defer func() { _ = log.Close() }()
	starts, err := p.open(pod, filepath.Join("containers", layout.ComputeContainer), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("find the container %s of Pod %s: %w", layout.ComputeContainer, pod, err)
	}
	defer func() { _ = starts.Close() }()
	has, err := log.Stat()
	if err != nil {
		return err
	}
	names, err := podprocess.Names(starts, maxStarts)
	if err != nil {
		return err
	}
	for _, name := range names {
		if made, err := os.Lstat(filepath.Join(podprocess.Reopen(starts), name)); err == nil && os.SameFile(made, has) {
			return nil
		}
	}
	return brokerapi.Refused("the process behind the socket of Pod %s is not in the container %s of the Pod", pod,
		layout.ComputeContainer)
}
