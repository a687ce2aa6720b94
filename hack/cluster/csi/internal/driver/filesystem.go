// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// filesystem is the filesystem of volumes. Unlike ext4, XFS can be expanded while it is mounted without
// CAP_SYS_RESOURCE, which root may lack on a machine that is itself a container or virtual machine.
const filesystem = "xfs"

// format makes a filesystem in a disk.
func format(disk *os.File, size int64) error {
	// reflink is disabled because the pool clones volumes as a whole. For a filesystem of less than 300 MiB, or a log of
	// less than 64 MiB, mkfs.xfs requires the option --unsupported. A log of 64 MiB would be a sixteenth of 1 GiB.
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
