// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package dhcpoption has the DHCP options that a VMI may add, as virt-controller passes them to virt-launcher.
package dhcpoption

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// DHCP options that a VMI may add (RFC 2132, 8.3, 9.4 and 9.5, and RFC 3942).
const (
	// NTPServers is a list of IPv4 addresses, separated by spaces in the flag.
	NTPServers = 42
	// TFTPServerName is a text.
	TFTPServerName = 66
	// BootFileName is a text.
	BootFileName = 67
	// FirstPrivate to LastPrivate are for private use. Their values are texts.
	FirstPrivate = 224
	LastPrivate  = 254
)

const (
	// MaxValue is the cap of an option's value in bytes (RFC 2132, 2: its length is one byte).
	MaxValue = 255
	// MaxValues is the cap in bytes of all added options of an interface, each with two bytes for its header. With the
	// options that every guest gets, a reply still fits into a packet of a network whose MTU is 1280.
	MaxValues = 512
)

// Option is an option that virt-launcher adds to its DHCP replies on one interface. The flag --dhcp-option has it.
type Option struct {
	// Interface is the Pod's interface.
	Interface string
	// Code is the option's number.
	Code uint8
	// Text is its value: a text, or the addresses of NTPServers.
	Text string
}

// String is the value of the flag: INTERFACE,CODE,TEXT. The text is escaped because Kubernetes expands $(NAME) in the
// arguments of containers.
func (o Option) String() string {
	return o.Interface + "," + strconv.Itoa(int(o.Code)) + "," + url.QueryEscape(o.Text)
}

// Parse parses what String returns.
func Parse(flag string) (Option, error) {
	fields := strings.SplitN(flag, ",", 3)
	if len(fields) < 3 || fields[0] == "" {
		return Option{}, errors.New("want INTERFACE,CODE,TEXT")
	}
	code, err := strconv.ParseUint(fields[1], 10, 8)
	if err != nil {
		return Option{}, fmt.Errorf("the option's number is %q: want one up to 254", fields[1])
	}
	out := Option{Interface: fields[0], Code: uint8(code)}
	if !out.allowed() {
		return out, fmt.Errorf("option %d cannot be added: want %d, %d, %d, or %d to %d", code,
			NTPServers, TFTPServerName, BootFileName, FirstPrivate, LastPrivate)
	}
	if out.Text, err = url.QueryUnescape(fields[2]); err != nil {
		return out, fmt.Errorf("option %d: %w", code, err)
	}
	return out, nil
}

func (o Option) allowed() bool {
	switch o.Code {
	case NTPServers, TFTPServerName, BootFileName:
		return true
	default:
		return o.Code >= FirstPrivate && o.Code <= LastPrivate
	}
}
