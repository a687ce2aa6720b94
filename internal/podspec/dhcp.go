// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/dhcpoption"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// optionHead is the size of the code and the length of a DHCP option in bytes (RFC 2132, 2).
const optionHead = 2

// dhcpArguments returns the launcher's arguments for the DHCP options of an interface. The launcher cannot read the VMI.
func dhcpArguments(path *field.Path, iface *v1.Interface, podInterface string) ([]string, error) {
	wanted := iface.DHCPOptions
	if wanted == nil {
		return nil, nil
	}
	path = path.Child("dhcpOptions")
	options := optionList{path: path, podInterface: podInterface}
	options.text(path.Child("bootFileName"), dhcpoption.BootFileName, wanted.BootFileName)
	options.text(path.Child("tftpServerName"), dhcpoption.TFTPServerName, wanted.TFTPServerName)
	options.ntpServers(path.Child("ntpServers"), wanted.NTPServers)
	for i, private := range wanted.PrivateOptions {
		at := path.Child("privateOptions").Index(i)
		if private.Option < dhcpoption.FirstPrivate || private.Option > dhcpoption.LastPrivate {
			return nil, field.Invalid(at.Child("option"), private.Option, "must be in range 224 to 254")
		}
		options.text(at.Child("value"), uint8(private.Option), private.Value)
	}
	return options.arguments()
}

// optionList collects the DHCP options of one interface, and their size.
type optionList struct {
	path         *field.Path
	podInterface string
	flags        []string
	bytes        int
	errs         field.ErrorList
}

func (l *optionList) text(path *field.Path, code uint8, text string) {
	// A private option may be empty.
	if text == "" && code < dhcpoption.FirstPrivate {
		return
	}
	l.add(path, code, text, len(text))
}

func (l *optionList) ntpServers(path *field.Path, servers []string) {
	addresses := make([]string, 0, len(servers))
	for i, server := range servers {
		// KubeVirt accepts leading zeros in an address.
		ip := netutils.ParseIPSloppy(server).To4()
		if ip == nil {
			l.errs = append(l.errs, field.Invalid(path.Index(i), server, "must be an IPv4 address"))
			continue
		}
		addresses = append(addresses, ip.String())
	}
	if len(addresses) > 0 {
		l.add(path, dhcpoption.NTPServers, strings.Join(addresses, " "), 4*len(addresses))
	}
}

func (l *optionList) add(path *field.Path, code uint8, text string, bytes int) {
	if bytes > dhcpoption.MaxValue {
		l.errs = append(l.errs, field.TooLong(path, text, dhcpoption.MaxValue))
		return
	}
	l.bytes += bytes + optionHead
	option := dhcpoption.Option{Interface: l.podInterface, Code: code, Text: text}
	l.flags = append(l.flags, "--dhcp-option", option.String())
}

func (l *optionList) arguments() ([]string, error) {
	if l.bytes > dhcpoption.MaxValues {
		l.errs = append(l.errs, field.Invalid(l.path, l.bytes,
			"all options together must have at most 512 bytes, two for each and its value, to fit a packet: shorten them"))
	}
	return l.flags, specsupport.JoinErrors(l.errs)
}
