// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package machinetype replaces the machine types that only the QEMU of Red Hat's distributions has, which KubeVirt's
// images contain, by the nearest ones of QEMU as its developers release it.
package machinetype

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// families are the prefixes of Red Hat's machine types, each with the prefix of the machine types that they are made
// from.
var families = []struct{ redHat, qemu string }{
	{"pc-q35-rhel", "pc-q35-"},
	{"virt-rhel", "virt-"},
	{"s390-ccw-virtio-rhel", "s390-ccw-virtio-"},
}

// version is a release of the distribution, or of QEMU.
type version struct{ major, minor uint }

func (v version) compare(o version) int {
	return cmp.Or(cmp.Compare(v.major, o.major), cmp.Compare(v.minor, o.minor))
}

// newest is the version of the launcher's QEMU.
var newest = version{10, 0}

// bases are the releases of the distribution that have a machine type of their own, in order, with the version of QEMU
// from which it was made. If that is later than the launcher's, it is the launcher's.
// docs/adr/0110-machine-types-of-other-builds.md has the sources.
var bases = []struct{ release, qemu version }{
	{version{7, 3}, version{2, 6}},
	{version{7, 4}, version{2, 9}},
	{version{7, 5}, version{2, 11}},
	{version{7, 6}, version{2, 12}},
	{version{8, 0}, version{3, 1}},
	{version{8, 1}, version{4, 1}},
	{version{8, 2}, version{4, 2}},
	{version{8, 3}, version{5, 1}},
	{version{8, 4}, version{5, 2}},
	{version{8, 5}, version{6, 0}},
	{version{8, 6}, version{6, 2}},
	{version{9, 2}, version{7, 2}},
	{version{9, 4}, version{8, 2}},
	{version{9, 6}, version{9, 1}},
	{version{9, 8}, newest},
	{version{10, 0}, version{9, 1}},
	{version{10, 2}, newest},
}

// ForStart returns the machine type with which a guest of a spec starts. It is the one in the spec unless that is one
// of Red Hat's. A guest that runs keeps the one that it started with.
func ForStart(spec string) string {
	for _, family := range families {
		text, found := strings.CutPrefix(spec, family.redHat)
		if !found {
			continue
		}
		release, ok := parse(text)
		if !ok {
			return spec
		}
		after := slices.IndexFunc(bases,
			func(b struct{ release, qemu version }) bool { return b.release.compare(release) > 0 })
		if after < 0 {
			after = len(bases)
		}
		base := bases[max(after-1, 0)].qemu
		return fmt.Sprintf("%s%d.%d", family.qemu, base.major, base.minor)
	}
	return spec
}

// Replaced describes for users that a guest does not start with the machine type of its spec. It is empty if the guest
// does.
func Replaced(spec string) string {
	start := ForStart(spec)
	if start == spec {
		return ""
	}
	return fmt.Sprintf("QEMU has the machine type %s in Red Hat's distributions only: a guest that starts gets %s, the nearest to it", spec, start)
}

// parse parses a release such as 9.2.0. The last number, which is always 0, does not matter.
func parse(text string) (version, bool) {
	var v version
	var patch uint
	n, err := fmt.Sscanf(text, "%d.%d.%d", &v.major, &v.minor, &patch)
	return v, err == nil && n == 3 && text == fmt.Sprintf("%d.%d.%d", v.major, v.minor, patch)
}
