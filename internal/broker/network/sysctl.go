// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi/networkapi"
)

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

var settings = map[networkapi.Setting]setting{
	networkapi.ForwardIPv4:   {name: "ipv4/ip_forward", value: 1},
	networkapi.ForwardIPv6:   {name: "ipv6/conf/all/forwarding", value: 1},
	networkapi.IgnoreARP:     {name: "ipv4/conf/%s/arp_ignore", ofLink: true, value: 1},
	networkapi.RouteLoopback: {name: "ipv4/conf/%s/route_localnet", ofLink: true, value: 1},
	// Forwarding makes the kernel ignore router advertisements unless this is 2, and the Pod may have its default route from one.
	networkapi.AcceptRA: {name: "ipv6/conf/%s/accept_ra", ofLink: true, value: 2, from: func(now int) bool { return now == 1 }},
	// A process that does not run as root has no capability for these ports, unless its file has. Many container runtimes allow them already.
	networkapi.DHCPPorts: {name: "ipv4/ip_unprivileged_port_start", value: dhcpPort, from: func(now int) bool { return now > dhcpPort }},
}

// apply changes a setting, unless it is as it should be, in a procfs that the calling thread has mounted: the files below sys/net are those
// of its network namespace. A kernel without IPv6 has no settings of it.
func apply(procfs *os.File, which networkapi.Setting, link string) error {
	to := settings[which]
	name := "sys/net/" + to.name
	if to.ofLink {
		name = fmt.Sprintf(name, link)
	}
	text, err := podprocess.Read(procfs, name)
	if which == networkapi.AcceptRA && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || now == to.value || to.from != nil && !to.from(now) {
		return err
	}
	file, err := podprocess.OpenAt(procfs, name, unix.O_WRONLY, podprocess.Beneath)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(to.value))
	return errors.Join(err, file.Close())
}
