// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// filesystem of volumes. It can grow while it is mounted without CAP_SYS_RESOURCE, which root may lack on a machine that is a container or
// virtual machine itself, and which ext4 needs.
const filesystem = "xfs"

// format makes a filesystem in a disk.
func format(disk *os.File, size int64) error {
	// Volumes are cloned by the pool, not inside. Below 300 MiB, and with a log of less than 64 MiB, which would be a sixteenth of 1 GiB,
	// mkfs.xfs needs an option that confirms that performance does not matter.
	arguments := []string{"-q", "-K", "--unsupported", "-m", "reflink=0"}
	if size > 256*mib {
		arguments = append(arguments, "-l", "size=16m")
	}
	output, err := exec.Command("mkfs.xfs", append(arguments, disk.Name())...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make a filesystem: %w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}
