// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// VSOCKIndex finds VMIs by their address on VSOCK.
const VSOCKIndex = "status.VSOCKCID"

const (
	// firstCID is the first address that a guest may have; those before it mean the hypervisor, the machine itself and its
	// host. lastCID is the last; the one after it means any. Source: linux/vm_sockets.h.
	firstCID, lastCID uint32 = 3, 1<<32 - 2
	// cidAttempts bounds the search for a free address. Among four thousand million, the first is taken only by accident.
	cidAttempts = 16
)

// errNoCID is what nobody should ever see.
var errNoCID = errors.New("found no free address on VSOCK, trying again")

// VSOCKAddress is the index of a VMI: its address, if it has one.
func VSOCKAddress(vmi *v1.VirtualMachineInstance) []string {
	if vmi.Status.VSOCKCID == nil {
		return nil
	}
	return []string{formatCID(*vmi.Status.VSOCKCID)}
}

// assignVSOCK gives a VMI an address that no other has, wherever it runs: with migration, nodes share them. It follows
// from the UID, so that it is the same after a restart and does not depend on what a cache has not seen yet.
func assignVSOCK(ctx context.Context, s *Scope) error {
	if wanted := s.VMI.Spec.Domain.Devices.AutoattachVSOCK; wanted == nil || !*wanted {
		return nil
	}
	cid := CIDOf(s.VMI.UID)
	for range cidAttempts {
		others := &v1.VirtualMachineInstanceList{}
		if err := s.Client.List(ctx, others, client.MatchingFields{VSOCKIndex: formatCID(cid)}); err != nil {
			return fmt.Errorf("list VirtualMachineInstances by address on VSOCK: %w", err)
		}
		if len(others.Items) == 0 || others.Items[0].UID == s.VMI.UID {
			s.VSOCK = ptr.To(cid)
			return nil
		}
		cid = firstCID + (cid-firstCID+1)%(lastCID-firstCID+1)
	}
	return errNoCID
}

// CIDOf is the address that a VMI gets unless another has it: it spreads UIDs over the addresses.
func CIDOf(uid types.UID) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // never fails
	return firstCID + hash.Sum32()%(lastCID-firstCID+1)
}

func formatCID(cid uint32) string { return strconv.FormatUint(uint64(cid), 10) }
