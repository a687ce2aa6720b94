// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"fmt"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"
)

func TestCheckpointOfAHostileLauncher(t *testing.T) {
	parsed := &libvirtxml.DomainCheckpoint{Name: "c", Disks: &libvirtxml.DomainCheckpointDisks{}}
	add := func(target, checkpoint string) {
		parsed.Disks.Disks = append(parsed.Disks.Disks, libvirtxml.DomainCheckpointDisk{Name: target, Checkpoint: checkpoint})
	}
	add("vda", checkpointBitmap)
	add("vdb", checkpointNone)
	add(strings.Repeat("v", 1000), checkpointBitmap)
	got, bytes := checkpointOf(parsed)
	if got.Name != "c" || len(got.Targets) != 1 || got.Targets[0] != "vda" || bytes > SmallCheckpoints/16 {
		t.Errorf("got %+v with %d bytes", got, bytes)
	}
	for i := range 4000 {
		add(fmt.Sprintf("vd%d", i), checkpointBitmap)
	}
	if got, bytes := checkpointOf(parsed); len(got.Targets) > maxCheckpointDisks ||
		bytes > maxCheckpointDisks*(maxTargetName+stringBytes)+stringBytes+1 {
		t.Errorf("got %d disks, and %d bytes", len(got.Targets), bytes)
	}
}
