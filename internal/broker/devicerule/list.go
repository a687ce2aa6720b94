// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// access is what a rule of this package permits. A runtime's rules for a device permit mknod ("m") or do not permit writing.
const access = "rw"

// list is the list of rules of a cgroup of version 1, given its directory.
// Source: Linux Documentation/admin-guide/cgroup-v1/devices.rst
type list struct{ dir *os.File }

func (l list) added() ([]Device, error) {
	f, err := openBeneath(l.dir, "devices.list", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var devices []Device
	lines := bufio.NewScanner(io.LimitReader(f, maxFile))
	for lines.Scan() {
		if device, ours := parseRule(lines.Text()); ours {
			devices = append(devices, device)
		}
	}
	return devices, lines.Err()
}

// parseRule returns the device of a rule such as "b 8:16 rw", if it is one of this package.
func parseRule(line string) (Device, bool) {
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != "b" || fields[2] != access {
		return Device{}, false
	}
	major, minor, _ := strings.Cut(fields[1], ":")
	a, errA := strconv.ParseUint(major, 10, 32)
	b, errB := strconv.ParseUint(minor, 10, 32)
	return Device{Major: uint32(a), Minor: uint32(b)}, errA == nil && errB == nil
}

func (l list) allow(d Device) error { return l.write("devices.allow", d) }

func (l list) deny(d Device) error { return l.write("devices.deny", d) }

func (l list) write(name string, d Device) error {
	f, err := openBeneath(l.dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "b %d:%d %s", d.Major, d.Minor, access)
	return errors.Join(err, f.Close())
}
