// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vireo-project/vireo/internal/launcherpod/dhcpoption"
)

// OptionUsage is the help text of a flag that AddOptions parses.
const OptionUsage = "an option for the replies of DHCPv4 as NAME,CODE,TEXT (repeatable): NAME is that of an --interface, CODE is 42 (addresses\n" +
	"of NTP servers), 66 (name of the TFTP server), 67 (name of the boot file) or 224 to 254, TEXT is escaped as in a URL's query"

// Option is an encoded DHCPv4 option.
type Option struct {
	// Code is its number.
	Code uint8
	// Value is its content.
	Value []byte
}

// AddOptions parses flags in the format that OptionUsage describes and adds each option to its interface.
func AddOptions(interfaces []Interface, flags []string) error {
	for _, flag := range flags {
		parsed, err := dhcpoption.Parse(flag)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		index := slices.IndexFunc(interfaces, func(i Interface) bool { return i.Name == parsed.Interface })
		if index < 0 {
			return fmt.Errorf("%s: there is no --interface %s", flag, parsed.Interface)
		}
		option, err := newOption(parsed)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		interfaces[index].Options = append(interfaces[index].Options, option)
	}
	return nil
}

func newOption(parsed dhcpoption.Option) (Option, error) {
	option := Option{Code: parsed.Code, Value: []byte(parsed.Text)}
	if parsed.Code == dhcpoption.NTPServers {
		option.Value = nil
		for text := range strings.FieldsSeq(parsed.Text) {
			server, err := netip.ParseAddr(text)
			if err != nil || !server.Is4() {
				return option, fmt.Errorf("%q is no IPv4 address", text)
			}
			option.Value = append(option.Value, server.AsSlice()...)
		}
	}
	if len(option.Value) > dhcpoption.MaxValue {
		return option, fmt.Errorf("the value has %d bytes: an option has at most %d", len(option.Value), dhcpoption.MaxValue)
	}
	return option, nil
}
