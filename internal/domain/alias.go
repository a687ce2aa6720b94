// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"regexp"

	"libvirt.org/go/libvirtxml"
)

// aliasText is what libvirt lets an alias consist of. Source: libvirt src/conf/device_conf.c,
// virDomainDeviceInfoParseXML.
var aliasText = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// userAlias carries the name that the spec has for a device into the domain, where a person or a tool finds it again.
// Names that libvirt could not take as an alias are not carried: KubeVirt's API sets no limits to them, and no guest
// depends on them.
func userAlias(kind, name string) *libvirtxml.DomainAlias {
	if !aliasText.MatchString(name) {
		return nil
	}
	return &libvirtxml.DomainAlias{Name: "ua-" + kind + "-" + name}
}
