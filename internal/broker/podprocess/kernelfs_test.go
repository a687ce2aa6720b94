// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A Pod may have mounted a file system of the kernel where an image or the persistent state is expected. Its files are regular ones.
func TestFilesOfTheKernelAreNotOpened(t *testing.T) {
	process, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Close() }()
	root, err := OpenRoot(process)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for _, c := range [][2]string{{"/proc", "iomem"}, {"/proc", "self/pagemap"}, {"/sys", "kernel/notes"}, {"/sys/devices", "system/cpu/online"}} {
		within := func(mount, name string) (*os.File, error) { return root.OpenWithin(mount, name, unix.S_IFREG) }
		for how, open := range map[string]func(mount, name string) (*os.File, error){"OpenRegular": root.OpenRegular, "OpenWithin": within} {
			f, err := open(c[0], c[1])
			if err == nil {
				_ = f.Close()
			}
			if !errors.Is(err, errKernelFiles) {
				t.Errorf("%s of %s in %s: %v", how, c[1], c[0], err)
			}
		}
	}
}
