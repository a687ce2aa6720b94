// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package layout

import (
	"strings"
	"testing"
)

func TestBackupSocketName(t *testing.T) {
	if name := BackupSocketName("5f0e8a3c-1b2d-4e6f-8a9b-0c1d2e3f4a5b"); !IsBackupSocketName(name) {
		t.Errorf("%s is not the name of a backup's socket", name)
	}
	for _, name := range []string{"", "backup-", "backup-../libvirt-sock", "backup-a/b", "backup-a.b", "Backup-a", "a",
		"x-backup-a", LibvirtSocketName} {
		if IsBackupSocketName(name) {
			t.Errorf("%q is the name of a backup's socket", name)
		}
	}
}

func TestAttachmentPod(t *testing.T) {
	names := map[string]bool{}
	for _, volume := range []string{"data", "data2", strings.Repeat("v", 63), strings.Repeat("v", 62),
		strings.Repeat("v-", 31) + "v"} {
		for _, launcher := range []string{"uid-1", "uid-2"} {
			name := AttachmentPod(launcher, volume)
			if names[name] || len(name) > maxPodName || !IsAttachmentPod(name) || !IsVolumeName(name) {
				t.Errorf("volume %s of %s: %s", volume, launcher, name)
			}
			names[name] = true
		}
	}
	// virt-controller and virt-broker may be of different versions.
	if got, want := AttachmentPod("uid-1", "data"), "hp-volume-data-eluils6j"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestIsVolumeName(t *testing.T) {
	for name, want := range map[string]bool{
		"data": true, "a": true, "a-1": true, "": false, ".": false, "..": false, "a.img": false, "a/b": false, "A": false, "-a": false, "a-": false,
		"a\x00": false, "a\n": false, strings.Repeat("a", 64): false,
	} {
		if IsVolumeName(name) != want {
			t.Errorf("%q is %v", name, !want)
		}
	}
}
