// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"io/fs"
	"os"
	"strings"
)

// userfaultSetting says whether a process without privileges may handle faults of the kernel's: 1 or 0. A kernel without userfaultfd
// has none. Source: Documentation/admin-guide/sysctl/vm.rst of Linux.
const userfaultSetting = "sys/vm/unprivileged_userfaultfd"

// AllowsPostCopy says whether QEMU, which has no privileges, can take in a post-copy on this node. QEMU refuses a migration that
// merely may become one if not, at the target only (migrate_caps_check in migration/options.c): the source needs nothing.
func AllowsPostCopy() bool { return allowsPostCopy(os.DirFS("/proc")) }

func allowsPostCopy(proc fs.FS) bool {
	text, err := fs.ReadFile(proc, userfaultSetting)
	return err == nil && strings.TrimSpace(string(text)) == "1"
}
