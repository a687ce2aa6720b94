// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package layout

import "testing"

func TestBackupSocketName(t *testing.T) {
	if name := BackupSocketName("5f0e8a3c-1b2d-4e6f-8a9b-0c1d2e3f4a5b"); !IsBackupSocketName(name) {
		t.Errorf("%s is not the name of a backup's socket", name)
	}
	for _, name := range []string{"", "backup-", "backup-../libvirt-sock", "backup-a/b", "backup-a.b", "Backup-a", "a", "x-backup-a", LibvirtSocketName} {
		if IsBackupSocketName(name) {
			t.Errorf("%q is the name of a backup's socket", name)
		}
	}
}
