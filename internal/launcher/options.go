// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package launcher is PID 1 of a VM's Pod. It starts libvirtd, watches the one domain that the node agent defines there, serves
// DHCP to the guest, copies the guest's console to the container that logs it, shuts the guest down on SIGTERM, and exits with
// the guest's outcome. It is no client of the API server.
package launcher

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/vireo-project/vireo/internal/launcher/dhcp"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Options are the launcher's options, from its command line.
type Options struct {
	// Namespace and Name are the VMI's.
	Namespace string
	Name      string
	// UID is the VMI's UID.
	UID string
	// Subdomain is the VMI's subdomain, for the guest's search list; empty if it has none.
	Subdomain string
	// GracePeriod is how long a guest may take to shut down before it is destroyed.
	GracePeriod time.Duration
	// Interfaces are the guest's interfaces that are served by DHCP.
	Interfaces []dhcp.Interface
	// LibvirtLogFilters are libvirtd's log filters. Empty means that it logs warnings and errors.
	LibvirtLogFilters string
	// TerminationLog is the file for the outcome.
	TerminationLog string
}

// Validate returns an error if an option is missing or invalid.
func (o Options) Validate() error {
	switch {
	case o.Name == "":
		return errors.New("--name is missing: name the VirtualMachineInstance")
	case o.Namespace == "":
		return errors.New("--namespace is missing: name the VirtualMachineInstance's namespace")
	case o.GracePeriod < 0:
		return fmt.Errorf("--grace-period-seconds is %d: it must be 0 or more", int(o.GracePeriod.Seconds()))
	}
	return nil
}

// Directories in the Pod's runtime volume. libvirtd in session mode gets its directories from these variables.
var (
	homeDir    = filepath.Join(launcherpod.RuntimeDir, "home")
	xdgRuntime = filepath.Join(launcherpod.RuntimeDir, "run")
	xdgConfig  = filepath.Join(launcherpod.RuntimeDir, "config")
	xdgCache   = filepath.Join(launcherpod.RuntimeDir, "cache")
	tempDir    = filepath.Join(launcherpod.RuntimeDir, "tmp")
)

// Files of the launcher image.
const (
	libvirtdBinary = "/usr/sbin/libvirtd"
	shareDir       = "/usr/share/vireo/libvirt"
	libvirtdConfig = shareDir + "/libvirtd.conf"
	qemuConfig     = shareDir + "/qemu.conf"
	swtpmConfig    = "/usr/share/vireo/swtpm/swtpm_setup.conf"
	resolvConf     = "/etc/resolv.conf"
)
