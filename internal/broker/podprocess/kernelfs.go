// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// errKernelFiles means that a file is one of the kernel's.
var errKernelFiles = errors.New("it is on a file system of the kernel")

// kernelFileSystems are those whose files the kernel makes up, and shows more of to root.
var kernelFileSystems = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
	unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC,
	unix.BINFMTFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC, unix.NSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC,
}

// ExpectNoKernelFile returns an error if a file or directory is on a file system of the kernel. Its files are regular ones, and differ by
// who has opened them: with the broker's privileges, they have physical addresses and the memory of PCI devices. A Pod whose runtime
// lets it make user namespaces can mount them wherever it likes.
func ExpectNoKernelFile(file *os.File) error {
	var stat unix.Statfs_t
	err := unix.Fstatfs(int(file.Fd()), &stat)
	if err == nil && slices.Contains(kernelFileSystems, int64(stat.Type)) { //nolint:unconvert // the width differs between architectures
		err = errKernelFiles
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: file.Name(), Err: err}
	}
	return nil
}
