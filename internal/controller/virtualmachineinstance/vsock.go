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

// VSOCKIndex finds VMIs by their VSOCK address.
const VSOCKIndex = "status.VSOCKCID"

const (
	// firstCID and lastCID are the first and the last address of guests. The ones before mean the hypervisor, the local
	// system and the host; the one after means any. Source: linux/vm_sockets.h.
	firstCID, lastCID uint32 = 3, 1<<32 - 2
	// cidAttempts caps the search for a free address. Of four billion, the first one tried is rarely in use.
	cidAttempts = 16
)

// errNoCID is practically impossible.
var errNoCID = errors.New("found no free address on VSOCK, trying again")

// VSOCKAddress returns the value of VSOCKIndex: the address of the VMI, if it has one.
func VSOCKAddress(vmi *v1.VirtualMachineInstance) []string {
	if vmi.Status.VSOCKCID == nil {
		return nil
	}
	return []string{formatCID(*vmi.Status.VSOCKCID)}
}

// assignVSOCK assigns a VMI an address that is unique in the cluster: a migration must not have to change it. It is
// derived from the UID, so that it survives a restart and does not depend on a stale cache.
func (s *scope) assignVSOCK(ctx context.Context) error {
	if wanted := s.vmi.Spec.Domain.Devices.AutoattachVSOCK; wanted == nil || !*wanted {
		return nil
	}
	cid := CIDOf(s.vmi.UID)
	for range cidAttempts {
		others := &v1.VirtualMachineInstanceList{}
		if err := s.client.List(ctx, others, client.MatchingFields{VSOCKIndex: formatCID(cid)}); err != nil {
			return fmt.Errorf("list VirtualMachineInstances by address on VSOCK: %w", err)
		}
		if len(others.Items) == 0 || others.Items[0].UID == s.vmi.UID {
			s.vsockCID = ptr.To(cid)
			return nil
		}
		cid = firstCID + (cid-firstCID+1)%(lastCID-firstCID+1)
	}
	return errNoCID
}

// CIDOf is the address of a VMI unless another VMI has it. It spreads UIDs over the addresses.
func CIDOf(uid types.UID) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // never fails
	return firstCID + hash.Sum32()%(lastCID-firstCID+1)
}

func formatCID(cid uint32) string { return strconv.FormatUint(uint64(cid), 10) }
