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
	// NTPServersOption is a list of IPv4 addresses, separated by spaces in the flag.
	NTPServersOption = 42
	// TFTPServerNameOption is a text.
	TFTPServerNameOption = 66
	// BootFileNameOption is a text.
	BootFileNameOption = 67
	// FirstPrivateOption to LastPrivateOption are for private use. Their values are texts.
	FirstPrivateOption = 224
	LastPrivateOption  = 254
)

const (
	// MaxOptionValue is the cap of an option's value in bytes (RFC 2132, 2: its length is one byte).
	MaxOptionValue = 255
	// MaxOptionValues is the cap in bytes of all added options of an interface, each with two bytes for its header.
	// With the options that every guest gets, a reply still fits into a packet of a network whose MTU is 1280.
	MaxOptionValues = 512
)

// DHCPOption is an option that virt-launcher adds to its DHCP replies on one interface. The flag --dhcp-option has it.
type DHCPOption struct {
	// Interface is the Pod's interface.
	Interface string
	// Code is the option's number.
	Code uint8
	// Text is its value: a text, or the addresses of NTPServersOption.
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
			NTPServersOption, TFTPServerNameOption, BootFileNameOption, FirstPrivateOption, LastPrivateOption)
	}
	if out.Text, err = url.QueryUnescape(fields[2]); err != nil {
		return out, fmt.Errorf("option %d: %w", code, err)
	}
	return out, nil
}

func (o DHCPOption) allowed() bool {
	switch o.Code {
	case NTPServersOption, TFTPServerNameOption, BootFileNameOption:
		return true
	default:
		return o.Code >= FirstPrivateOption && o.Code <= LastPrivateOption
	}
}
