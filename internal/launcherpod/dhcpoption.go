// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// DHCP options that a VMI may add (RFC 2132, 8.3, 9.4 and 9.5, and RFC 3942).
const (
	// DHCPNTPServers is a list of IPv4 addresses, separated by spaces in the flag.
	DHCPNTPServers = 42
	// DHCPTFTPServerName is a text.
	DHCPTFTPServerName = 66
	// DHCPBootFileName is a text.
	DHCPBootFileName = 67
	// FirstPrivateDHCP to LastPrivateDHCP are for private use. Their values are texts.
	FirstPrivateDHCP = 224
	LastPrivateDHCP  = 254
)

const (
	// MaxDHCPOption is the cap of an option's value in bytes (RFC 2132, 2: its length is one byte).
	MaxDHCPOption = 255
	// MaxDHCPOptions is the cap in bytes of all added options of an interface, each with two bytes for its header. With the
	// options that every guest gets, a reply still fits into a packet of a network whose MTU is 1280.
	MaxDHCPOptions = 512
)

// DHCPOption is an option that virt-launcher adds to its DHCP replies on one interface. The flag --dhcp-option has it.
type DHCPOption struct {
	// Interface is the Pod's interface.
	Interface string
	// Code is the option's number.
	Code uint8
	// Text is its value: a text, or the addresses of DHCPNTPServers.
	Text string
}

// String is the value of the flag: INTERFACE,CODE,TEXT. The text is escaped because Kubernetes expands $(NAME) in the
// arguments of containers.
func (o DHCPOption) String() string {
	return o.Interface + "," + strconv.Itoa(int(o.Code)) + "," + url.QueryEscape(o.Text)
}

// ParseDHCPOption parses what String returns.
func ParseDHCPOption(flag string) (DHCPOption, error) {
	fields := strings.SplitN(flag, ",", 3)
	if len(fields) < 3 || fields[0] == "" {
		return DHCPOption{}, errors.New("want INTERFACE,CODE,TEXT")
	}
	code, err := strconv.ParseUint(fields[1], 10, 8)
	if err != nil {
		return DHCPOption{}, fmt.Errorf("the option's number is %q: want one up to 254", fields[1])
	}
	out := DHCPOption{Interface: fields[0], Code: uint8(code)}
	if !out.allowed() {
		return out, fmt.Errorf("option %d cannot be added: want %d, %d, %d, or %d to %d", code,
			DHCPNTPServers, DHCPTFTPServerName, DHCPBootFileName, FirstPrivateDHCP, LastPrivateDHCP)
	}
	if out.Text, err = url.QueryUnescape(fields[2]); err != nil {
		return out, fmt.Errorf("option %d: %w", code, err)
	}
	return out, nil
}

func (o DHCPOption) allowed() bool {
	switch o.Code {
	case DHCPNTPServers, DHCPTFTPServerName, DHCPBootFileName:
		return true
	default:
		return o.Code >= FirstPrivateDHCP && o.Code <= LastPrivateDHCP
	}
}
