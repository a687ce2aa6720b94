// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Files of the launcher image.
const (
	qemuBinary      = "/usr/bin/qemu-system-x86_64"
	libvirtModules  = "/usr/lib/x86_64-linux-gnu/libvirt"
	capabilitiesXML = "/usr/share/vireo/libvirt/capabilities.xml"
)

// FillQEMUCache fills libvirt's cache of QEMU's capabilities, so that libvirtd need not start QEMU to probe them: it
// writes those of the image below the directory in which libvirtd has its caches (XDG_CACHE_HOME). libvirt uses them
// only if the ctimes of the binaries match, which are not known when the image is built, and they are wrong where KVM
// is usable.
func FillQEMUCache(cacheHome string) error {
	if _, err := os.Stat("/dev/kvm"); err == nil {
		return errors.New("/dev/kvm is there")
	}
	template, err := os.ReadFile(capabilitiesXML)
	if err != nil {
		return err
	}
	qemuTime, err := ctime(qemuBinary)
	if err != nil {
		return err
	}
	selfTime, err := newestCtime(libvirtdBinary, libvirtModules+"/connection-driver/*.so",
		libvirtModules+"/storage-backend/*.so")
	if err != nil {
		return err
	}
	content := strings.NewReplacer("@QEMU_CTIME@", strconv.FormatInt(qemuTime, 10),
		"@SELF_CTIME@", strconv.FormatInt(selfTime, 10)).Replace(string(template))
	// libvirt names the file after the hash of the binary's path (virFileCacheGetFileName).
	name := sha256.Sum256([]byte(qemuBinary))
	dir := filepath.Join(cacheHome, "libvirt", "qemu", "cache", "capabilities")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(dir, hex.EncodeToString(name[:])+".xml")
	return os.WriteFile(file, []byte(content), 0o600) //nolint:gosec // the path is the caller's and constants
}

func newestCtime(patterns ...string) (int64, error) {
	var newest int64
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return 0, err
		}
		for _, file := range files {
			changed, err := ctime(file)
			if err != nil {
				return 0, err
			}
			newest = max(newest, changed)
		}
	}
	return newest, nil
}

func ctime(file string) (int64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		return 0, fmt.Errorf("read the ctime of %s: %w", file, err)
	}
	return stat.Ctim.Sec, nil
}
