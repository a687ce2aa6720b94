// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"regexp"

	"libvirt.org/go/libvirtxml"
)

// aliasText matches the aliases that libvirt accepts. Source: libvirt src/conf/device_conf.c,
// virDomainDeviceInfoParseXML.
var aliasText = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// userAlias returns an alias with the device's name in the spec, by which people and tools find the device in the
// domain. It returns nil for a name that libvirt does not accept: KubeVirt's API does not restrict names, and no guest
// depends on the alias.
func userAlias(kind, name string) *libvirtxml.DomainAlias {
	if !aliasText.MatchString(name) {
		return nil
	}
	return &libvirtxml.DomainAlias{Name: "ua-" + kind + "-" + name}
}
