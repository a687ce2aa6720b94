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

	"github.com/vireo-project/vireo/internal/brokerapi"
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
	root := -1
	if err = unix.FsconfigCreate(mount); err == nil {
		root, err = unix.Fsmount(mount, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	}
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

func (s *sysctls) set(name string, value int) error {
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

// setting is one of the kernel's settings, and the only value that the broker gives it.
type setting struct {
	// name is its path, with the name of a link if it is one of a link.
	name   string
	ofLink bool
	value  int
	// from reports whether a value is to be changed. Without it, any other value is.
	from func(now int) bool
}

var settings = map[brokerapi.Setting]setting{
	brokerapi.ForwardIPv4:   {name: "ipv4/ip_forward", value: 1},
	brokerapi.ForwardIPv6:   {name: "ipv6/conf/all/forwarding", value: 1},
	brokerapi.IgnoreARP:     {name: "ipv4/conf/%s/arp_ignore", ofLink: true, value: 1},
	brokerapi.RouteLoopback: {name: "ipv4/conf/%s/route_localnet", ofLink: true, value: 1},
	// Forwarding makes the kernel ignore router advertisements unless this is 2, and the Pod may have its default route from one.
	brokerapi.AcceptRA: {name: "ipv6/conf/%s/accept_ra", ofLink: true, value: 2, from: func(now int) bool { return now == 1 }},
	// A process that does not run as root has no capability for these ports, unless its file has. Many container runtimes allow them already.
	brokerapi.DHCPPorts: {name: "ipv4/ip_unprivileged_port_start", value: dhcpPort, from: func(now int) bool { return now > dhcpPort }},
}

// apply changes a setting, unless it is as it should be. A kernel without IPv6 has no settings of it.
func (s *sysctls) apply(which brokerapi.Setting, link string) error {
	to := settings[which]
	name := to.name
	if to.ofLink {
		name = fmt.Sprintf(to.name, link)
	}
	now, err := s.get(name)
	if which == brokerapi.AcceptRA && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || now == to.value || to.from != nil && !to.from(now) {
		return err
	}
	return s.set(name, to.value)
}
