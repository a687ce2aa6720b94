// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestName(t *testing.T) {
	logs := t.TempDir()
	for _, dir := range []string{"team_vm_uid-1", "team_vm_uid-12", "uid-1", "team_uid-1", "a_b_c_uid-1"} {
		if err := os.Mkdir(filepath.Join(logs, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if namespace, name, err := Name(logs, "uid-1"); err != nil || namespace != "team" || name != "vm" {
		t.Errorf("got %s/%s, %v", namespace, name, err)
	}
	if _, _, err := Name(logs, "uid"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another UID: %v", err)
	}
	if _, _, err := Name(filepath.Join(logs, "nothing"), "uid-1"); err == nil {
		t.Error("no error without the directory")
	}
}
