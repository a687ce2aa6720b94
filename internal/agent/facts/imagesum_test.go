// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts_test

import (
	"context"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// opener opens files in a directory.
type opener string

func (o opener) OpenFile(_ context.Context, _ types.UID, _, name string) (*os.File, error) {
	return os.Open(filepath.Join(string(o), name))
}

func TestSum(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 3<<20+7)
	content[2<<20] = 1
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := hypervisor.PodRef{UID: "uid", VMI: types.NamespacedName{Namespace: "team", Name: "vm"}}
	size, crc, err := facts.Sum(t.Context(), opener(dir), pod, "/image", "disk.img")
	if err != nil || size != int64(len(content)) || crc != crc32.ChecksumIEEE(content) {
		t.Errorf("%d bytes and checksum %d: %v", size, crc, err)
	}
	if size, _, err := facts.Sum(t.Context(), opener(dir), pod, "/image", "nothing"); err == nil {
		t.Errorf("%d bytes of nothing", size)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, _, err := facts.Sum(ended, opener(dir), pod, "/image", "disk.img"); err == nil {
		t.Error("a file was read after cancellation")
	}
}
