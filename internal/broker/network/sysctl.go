// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctls reads and writes the settings of the calling thread's network namespace.
type sysctls struct{ root int }

// openSysctls mounts a private procfs, so that the broker need not be privileged: /proc/sys of an unprivileged container is
// read-only. The files below sys/net are those of the calling thread's namespace.
func openSysctls() (*sysctls, error) {
	mount, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's network settings: %w", err)
	}
	defer func() { _ = unix.Close(mount) }()
	if err := unix.FsconfigCreate(mount); err != nil {
		return nil, fmt.Errorf("mount the kernel's network settings: %w", err)
	}
	root, err := unix.Fsmount(mount, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount the kernel's network settings: %w", err)
	}
	return &sysctls{root: root}, nil
}

func (s *sysctls) close() { _ = unix.Close(s.root) }

func (s *sysctls) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(s.root, "sys/net/"+name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open net/%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (s *sysctls) get(name string) (int, error) {
	file, err := s.open(name, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(file)
	if err != nil {
		return 0, fmt.Errorf("read net/%s: %w", name, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// set writes a value unless it is set.
func (s *sysctls) set(name string, value int) error {
	if now, err := s.get(name); err != nil || now == value {
		return err
	}
	file, err := s.open(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(value))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("set net/%s to %d: %w", name, value, err)
	}
	return nil
}

// dhcpPort is the lower of the ports that the launcher binds to (67 and 547).
const dhcpPort = 67

// allowDHCPPorts allows the launcher to bind to the DHCP ports. A process that does not run as root has no capability for it,
// unless its file has. Many container runtimes allow it already; then nothing is written.
func (s *sysctls) allowDHCPPorts() error {
	const name = "ipv4/ip_unprivileged_port_start"
	first, err := s.get(name)
	if err != nil || first <= dhcpPort {
		return err
	}
	return s.set(name, dhcpPort)
}

// forwardIPv4 enables IPv4 forwarding.
func (s *sysctls) forwardIPv4() error { return s.set("ipv4/ip_forward", 1) }

// forwardIPv6 enables IPv6 forwarding. This makes the kernel ignore router advertisements unless accept_ra is 2, and the Pod may
// have its default route from one.
func (s *sysctls) forwardIPv6(podInterface string) error {
	accept := "ipv6/conf/" + podInterface + "/accept_ra"
	if now, err := s.get(accept); err == nil && now == 1 {
		if err := s.set(accept, 2); err != nil {
			return err
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.set("ipv6/conf/all/forwarding", 1)
}
