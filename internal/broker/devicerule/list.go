// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

// rule is a rule of this package. It differs from a runtime's rules by what it permits: those for a device permit mknod ("m") or do not
// permit writing.
const rule = "b %d:%d rw"

// list is the list of rules of a cgroup of version 1, given its directory.
// Source: Linux Documentation/admin-guide/cgroup-v1/devices.rst
type list struct{ dir *os.File }

func (l list) added() ([]Device, error) {
	text, err := podprocess.Read(l.dir, "devices.list")
	var devices []Device
	for line := range strings.Lines(text) {
		var d Device
		// The kernel's text of the rule must be the same, as the numbers alone could be the beginning of another one.
		if _, err := fmt.Sscanf(line, rule, &d.Major, &d.Minor); err == nil && line == fmt.Sprintf(rule+"\n", d.Major, d.Minor) {
			devices = append(devices, d)
		}
	}
	return devices, err
}

func (l list) set(want []Device) error {
	current, err := l.added()
	errs := []error{err}
	for _, d := range current {
		if !slices.Contains(want, d) {
			errs = append(errs, l.write("devices.deny", d))
		}
	}
	for _, d := range want {
		if !slices.Contains(current, d) {
			errs = append(errs, l.write("devices.allow", d))
		}
	}
	return errors.Join(errs...)
}

func (l list) write(name string, d Device) error {
	f, err := podprocess.OpenAt(l.dir, name, unix.O_WRONLY, podprocess.Beneath)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, rule, d.Major, d.Minor)
	return errors.Join(err, f.Close())
}
