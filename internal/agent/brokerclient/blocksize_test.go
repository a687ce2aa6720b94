// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func TestDeviceSizes(t *testing.T) {
	sys := t.TempDir()
	queue := filepath.Join(sys, "devices", "vda", "queue")
	partition := filepath.Join(sys, "devices", "vda", "vda1")
	if err := errors.Join(os.MkdirAll(queue, 0o755), os.MkdirAll(partition, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]string{"logical_block_size": "512\n", "physical_block_size": "4096\n",
		"discard_granularity": "8192\n"} {
		if err := os.WriteFile(filepath.Join(queue, name), []byte(size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for number, target := range map[string]string{"252:0": filepath.Dir(queue), "252:1": partition} {
		if err := os.Symlink(target, filepath.Join(sys, number)); err != nil {
			t.Fatal(err)
		}
	}
	for minor, want := range map[uint32]facts.BlockSizes{
		0: {Logical: 512, Physical: 4096, Discard: 8192}, 1: {Logical: 512, Physical: 4096, Discard: 8192}, 2: {},
	} {
		if got := blockSizes(sys,
			brokerapi.InspectResult{Mode: unix.S_IFBLK, Major: 252, Minor: minor, BlockSize: 4096}); got != want {
			t.Errorf("252:%d: got %+v, want %+v", minor, got, want)
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(filepath.Dir(queue), "size"), []byte("2097152\n"), 0o600),
		os.WriteFile(filepath.Join(partition, "size"), []byte("2048\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for minor, want := range map[uint32]uint64{0: 1 << 30, 1: 1 << 20, 2: 0} {
		if got := deviceBytes(sys, brokerapi.InspectResult{Mode: unix.S_IFBLK, Major: 252, Minor: minor}); got != want {
			t.Errorf("252:%d: got %d bytes, want %d", minor, got, want)
		}
	}
	if got := deviceBytes(sys, brokerapi.InspectResult{Mode: unix.S_IFREG, Major: 252}); got != 0 {
		t.Errorf("a file: got %d bytes", got)
	}
	file := brokerapi.InspectResult{Mode: unix.S_IFREG, BlockSize: 4096}
	if got, want := blockSizes(sys, file), (facts.BlockSizes{Logical: 4096, Physical: 4096, Discard: 4096}); got != want {
		t.Errorf("a file: got %+v, want %+v", got, want)
	}
}
